// Sounds as samples: read, recorded, and drawn.

const RATE = 16000; // samples a second of what is recorded and sent

/** The samples of a file, mixed to one channel. @returns {Promise<Float32Array>} */
export async function samplesOf(blob) {
  const context = new OfflineAudioContext(1, 1, RATE);
  const buffer = await context.decodeAudioData(await blob.arrayBuffer());
  return buffer.getChannelData(0);
}

/** Samples as a WAV file: the server reads no WebM, which browsers record. */
export function wavOf(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (place, letters) => [...letters].forEach((letter, n) => view.setUint8(place + n, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  [[16, 16], [24, RATE], [28, 2 * RATE], [40, 2 * samples.length]].forEach(([at, n]) => view.setUint32(at, n, true));
  [[20, 1], [22, 1], [32, 2], [34, 16]].forEach(([at, n]) => view.setUint16(at, n, true));
  text(36, "data");
  samples.forEach((sample, n) => view.setInt16(44 + 2 * n, 32767 * Math.max(-1, Math.min(1, sample)), true));
  return new File([view], "recording.wav", { type: "audio/wav" });
}

/** Record until `stop` is called, which returns the samples. */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.start(100); // milliseconds of a part
  await new Promise((heard) => {
    recorder.ondataavailable = ({ data }) => parts.push(data) && data.size && heard();
  });
  return async () => {
    const ended = new Promise((resolve) => recorder.addEventListener("stop", resolve));
    recorder.stop();
    await ended;
    for (const track of stream.getTracks()) track.stop();
    return samplesOf(new Blob(parts));
  };
}

/** The loudest samples of each column, relative to the loudest of all: what a waveform shows. */
export function wave(context, samples, width, height) {
  context.clearRect(0, 0, width, height);
  const loudest = (part) => part.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
  const whole = loudest(samples) || 1;
  for (let x = 0; x < width; x += 1) {
    const part = samples.subarray((x * samples.length) / width, ((x + 1) * samples.length) / width);
    const length = Math.max(1, (loudest(part) / whole) * height);
    context.fillRect(x, (height - length) / 2, 1, length);
  }
}

/** Seconds of some samples. */
export const seconds = (samples) => samples.length / RATE;

const WINDOW = 512;

/** A spectrogram, one column at a time so that nothing waits for it. */
export async function spectrum(context, samples, width, height) {
  for (let x = 0; x < width; x += 1) {
    if (x % 16 === 15) await new Promise((resolve) => setTimeout(resolve));
    const start = Math.floor((x / width) * Math.max(1, samples.length - WINDOW));
    const loud = magnitudes(samples.subarray(start, start + WINDOW), height);
    loud.forEach((value, y) => {
      context.globalAlpha = value;
      context.fillRect(x, height - 1 - y, 1, 1);
    });
  }
  context.globalAlpha = 1;
}

/** How loud some frequencies are, each by Goertzel's recurrence, from 0 to 1. */
function magnitudes(part, count) {
  return Array.from({ length: count }, (_, band) => {
    const turn = 2 * Math.cos((Math.PI * (band + 0.5)) / count);
    let [before, last] = [0, 0];
    part.forEach((sample, n) => {
      const shaped = sample * (0.5 - 0.5 * Math.cos((2 * Math.PI * n) / WINDOW));
      [before, last] = [last, shaped + turn * last - before];
    });
    const power = before * before + last * last - turn * before * last;
    return Math.min(1, Math.max(0, (Math.log10(power + 1e-9) + 4) / 6));
  });
}
