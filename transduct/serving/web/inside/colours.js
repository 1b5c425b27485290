// Colours of heads, on canvases too, in light and dark.

import { useEffect, useState } from "../vendor/preact.js";

/**
 * Draw in a task of its own, so that several canvases never hold the page up together.
 * @param {() => Iterator|void} draw  a generator goes on in another task after each `yield`
 */
export function useDrawing(draw, inputs) {
  useEffect(() => {
    let [waiting, parts] = [0, null];
    const go = () => {
      parts ??= draw();
      if (parts && !parts.next().done) waiting = setTimeout(go);
    };
    waiting = setTimeout(go);
    return () => clearTimeout(waiting);
  }, inputs);
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
const known = new Map();

/** Whether the page is dark now, for a component. */
export function useDark() {
  const [dark, turn] = useState(DARK.matches);
  useEffect(() => {
    const changed = () => turn(DARK.matches);
    DARK.addEventListener("change", changed);
    return () => DARK.removeEventListener("change", changed);
  }, []);
  return dark;
}

/** The colour of a head, or of the mean: heads beside each other differ most. */
export function colourOf(head, dark = DARK.matches) {
  const light = dark ? 0.76 : 0.53;
  if (head === "mean") return `oklch(${light} 0.03 250)`;
  return `oklch(${light} 0.15 ${(255 + head * 137.5) % 360})`;
}

/** A colour as red, green and blue. @returns {number[]} */
export function rgb(colour) {
  if (!known.has(colour)) {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    known.set(colour, [...context.getImageData(0, 0, 1, 1).data].slice(0, 3));
  }
  return known.get(colour);
}

/** A colour that the page's style names, for a canvas, which knows no variables. */
export function named(name, dark) {
  const key = `${name} ${dark}`;
  if (!known.has(key)) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    known.set(key, getComputedStyle(probe).color);
    probe.remove();
  }
  return known.get(key);
}

/**
 * A picture of a matrix, a pixel a cell.
 * @param {(value: number) => number[]} ink  red, green, blue and alpha of a value
 */
export function picture(values, rows, columns, ink) {
  const pixels = new ImageData(Math.max(1, columns), Math.max(1, rows));
  values.forEach((value, i) => pixels.data.set(ink(value), 4 * i));
  const drawn = new OffscreenCanvas(pixels.width, pixels.height);
  drawn.getContext("2d").putImageData(pixels, 0, 0);
  return drawn;
}

/** A picture of a matrix: more of the colour for larger numbers. */
export function pictureOf(values, rows, columns, most, colour) {
  const [red, green, blue] = rgb(colour);
  return picture(values, rows, columns, (value) => [red, green, blue, (255 * value) / (most || 1)]);
}

/** A canvas made ready to be drawn on: sharp on every screen. @returns {CanvasRenderingContext2D} */
export function ready(canvas, width, height) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  return context;
}
