// Arithmetic of the views: packed numbers, words made of tokens, probabilities at a temperature.

/** @typedef {{text: string, first: number, last: number, special?: string, byte?: string}} Piece */

/** Unpack 16-bit integers in base64. @returns {Float32Array} */
export function unpacked({ scale, data }) {
  const view = new DataView(bytesOf(data).buffer);
  const found = new Float32Array(view.byteLength / 2);
  return found.map((_, i) => (view.getInt16(2 * i, true) * scale) / 32767);
}

/** The bytes that stand in base64. */
export const bytesOf = (data) => Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));

/**
 * The weights of each head between words: what a word looks at is the mean over its tokens, and
 * what is seen of a word is the sum over its tokens, so that each row still adds up to one.
 * @param {Float32Array} all  (heads, tokens, tokens)
 * @param {number[]} shape
 * @param {Piece[]} rows
 * @param {Piece[]} columns
 * @returns {Float32Array[]}  one a head: (rows, columns)
 */
export function between(all, [heads, T, S], rows, columns) {
  const found = [];
  for (let head = 0; head < heads; head++) {
    const one = new Float32Array(rows.length * columns.length);
    rows.forEach(({ first, last }, r) => {
      for (let t = first; t <= last; t++) {
        const start = (head * T + t) * S;
        columns.forEach((column, c) => {
          let sum = 0;
          for (let s = column.first; s <= column.last; s++) sum += all[start + s];
          one[r * columns.length + c] += sum / (last - first + 1);
        });
      }
    });
    found.push(one);
  }
  return found;
}

/** The mean of several matrices. @param {Float32Array[]} all */
export function mean(all) {
  const found = new Float32Array(all[0]?.length ?? 0);
  for (const one of all) for (let i = 0; i < found.length; i++) found[i] += one[i] / all.length;
  return found;
}

/**
 * The probabilities of the likeliest tokens of a step at a temperature, and of all others together.
 * @param {{logs: number[], rest: number[]}} step  `rest` has the others' logarithm by temperature
 * @param {number} at  the number of the temperature
 * @param {number} temperature
 */
export function chances({ logs, rest }, at, temperature) {
  const powers = [...logs.map((log) => log / temperature), rest[at]];
  const largest = Math.max(...powers);
  const parts = powers.map((power) => Math.exp(power - largest));
  const sum = parts.reduce((a, b) => a + b, 0);
  return { each: parts.slice(0, -1).map((part) => part / sum), others: parts.at(-1) / sum };
}

/** A weight or a probability: two digits, or the first that is not zero. */
export function shown(value, digits = 2) {
  const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  return (small ? value.toPrecision(1) : value.toFixed(digits)).replace("-", "−");
}

/** The largest number of some. */
export const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
