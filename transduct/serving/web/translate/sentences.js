// A text as sentences, and a sentence as words.

/**
 * @typedef {object} Cut
 * @property {string} text  a sentence, or "" for an empty line
 * @property {string} gap  the blanks and line breaks between it and the next
 */

const segmenters = new Map();

function segments(text, language, granularity) {
  const key = `${language} ${granularity}`;
  if (!segmenters.has(key)) segmenters.set(key, made(language, granularity));
  return segmenters.get(key).segment(text);
}

function made(language, granularity) {
  try {
    return new Intl.Segmenter(language || undefined, { granularity });
  } catch {
    return new Intl.Segmenter(undefined, { granularity }); // a code that is no language's
  }
}

/** The sentences of a text; put together again they are the text. @returns {Cut[]} */
export function cut(text, language) {
  const found = [];
  for (const line of text.split(/(?<=\n)/)) {
    for (const { segment } of segments(line, language, "sentence")) {
      const kept = segment.trimEnd();
      const gap = segment.slice(kept.length);
      if (kept || !found.length) found.push({ text: kept, gap });
      else found.at(-1).gap += gap;
    }
  }
  return found;
}

/**
 * The words of a sentence and what stands between them.
 * @returns {{text: string, at: number, word: boolean}[]}
 */
export const words = (text, language) => Array.from(segments(text, language, "word"),
  ({ segment, index, isWordLike }) => ({ text: segment, at: index, word: isWordLike }));

/** The word that begins at a place of a sentence, or the one in which it lies. */
export function wordAt(text, place, language) {
  return words(text, language).find(({ text: word, at }) => at + word.length > place)?.text ?? "";
}

/**
 * How likely the model thought each word: the product of its tokens' probabilities.
 * @param {{target: [number, number]|null, log_probability: number}[]|null} tokens
 */
export function probability({ text, at }, tokens) {
  const inside = (tokens ?? []).filter(
    ({ target }) => target && target[0] < at + text.length && target[1] > at,
  );
  return inside.length ? Math.exp(inside.reduce((sum, one) => sum + one.log_probability, 0)) : 1;
}
