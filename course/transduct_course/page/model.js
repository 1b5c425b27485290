"use strict";
// The formulas of the course as plain loops: attention, positions and a whole Transformer.

/** e to the power of each score, divided by their sum. */
function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

/** q · k for two vectors of equal length. */
function dot(q, k) {
  let sum = 0;
  for (let i = 0; i < q.length; i++) sum += q[i] * k[i];
  return sum;
}

/** softmax(q · k / √d_k / temperature): a row of weights for each query. With `mask`, query i sees
 *  keys 0 to i. */
function attentionWeights(queries, keys, {divide = true, temperature = 1, mask = false} = {}) {
  const scale = (divide ? 1 / Math.sqrt(queries[0].length) : 1) / temperature;
  return queries.map((query, i) =>
    softmax(keys.map((key, j) => (mask && j > i ? -Infinity : dot(query, key) * scale))));
}

/** The weighted sum of the values, for each row of weights. */
function mixed(weights, values) {
  return weights.map((row) => {
    const sum = new Float64Array(values[0].length);
    row.forEach((weight, j) => values[j].forEach((value, d) => (sum[d] += weight * value)));
    return sum;
  });
}

/** How many bits tell which token has the weight: 0 is one token, 3 bits are eight alike. */
function entropy(weights) {
  return -weights.reduce((sum, w) => sum + (w > 0 ? w * Math.log2(w) : 0), 0);
}

/** The norm of softmax's slopes, a matrix of w_i (1 if i = j, else 0) - w_i w_j. */
function slope(weights) {
  let sum = 0;
  weights.forEach((a, i) => weights.forEach((b, j) => (sum += (a * ((i === j) - b)) ** 2)));
  return Math.sqrt(sum);
}

/** Sines and cosines in turn, at wavelengths from 2π to nearly 2π times the base. */
function position(place, width, base = 10000) {
  return Float64Array.from({length: width}, (_, i) => {
    const angle = place * base ** (-(i - (i % 2)) / width);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** A Transformer that translates, from a file of safetensors and a tokenizer of the library. */
class Translator {
  constructor(bytes, tokenizer) {
    const view = new DataView(bytes), length = Number(view.getBigUint64(0, true));
    const index = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length)));
    const found = {};
    for (const [name, {dtype, shape, data_offsets: [start, end]}] of Object.entries(index)) {
      if (name === "__metadata__") continue;
      const part = bytes.slice(8 + length + start, 8 + length + end);
      const numbers = dtype === "I8" ? new Int8Array(part) : new Float32Array(part);
      found[name] = {numbers, columns: shape[shape.length - 1]};
    }
    // 8 bits: whole numbers times the step of their row.
    const steps = (name) => found[name.replace(/weight$/, "steps")];
    this.weights = Object.fromEntries(Object.entries(found).map(([name, {numbers, columns}]) => [name, {
      columns,
      numbers: numbers instanceof Int8Array
        ? Float32Array.from(numbers, (n, i) => n * steps(name).numbers[Math.floor(i / columns)])
        : numbers,
    }]));
    this.table = this.weights["source_embedding.table.weight"]; // both embeddings and the output
    const stacks = Object.keys(this.weights);
    const count = (stack) =>
      1 + Math.max(...stacks.map((n) => (n.startsWith(stack) ? parseInt(n.slice(8)) : -1)));
    this.layers = [count("encoder."), count("decoder.")];
    this.heads = 4;
    this.vocabulary = tokenizer.model.vocab;
    this.pieces = Object.keys(this.vocabulary).sort((a, b) => this.vocabulary[a] - this.vocabulary[b]);
    this.ranks = new Map(tokenizer.model.merges.map((pair, rank) => [pair.join(" "), rank]));
  }

  /** The ids of a text: its words' letters, merged by rank; a letter that is unknown, as bytes. */
  encode(text) {
    const words = text.normalize("NFC").split(/\s+/).filter(Boolean);
    return words.flatMap((word) => {
      let parts = [...`▁${word}`];
      for (;;) {
        let best = Infinity, at = -1;
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`);
          if (rank < best) [best, at] = [rank, i];
        }
        if (at < 0) break;
        parts.splice(at, 2, parts[at] + parts[at + 1]);
      }
      return parts.flatMap((part) => this.vocabulary[part] ?? [...new TextEncoder().encode(part)]
        .map((byte) => this.vocabulary[`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`]));
    });
  }

  /** The text of ids. */
  decode(ids) {
    const bytes = ids.flatMap((id) => {
      const byte = /^<0x(..)>$/.exec(this.pieces[id]);
      return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(this.pieces[id])];
    });
    return new TextDecoder().decode(new Uint8Array(bytes)).replaceAll("▁", " ").trim();
  }

  /** x W^T + b for each row. */
  linear(rows, name) {
    const {numbers, columns} = this.weights[`${name}.weight`];
    const bias = this.weights[`${name}.bias`].numbers;
    return rows.map((row) => {
      const out = Float64Array.from(bias);
      for (let f = 0, w = 0; f < out.length; f++) {
        let sum = 0;
        for (let d = 0; d < columns; d++) sum += numbers[w++] * row[d];
        out[f] += sum;
      }
      return out;
    });
  }

  /** Layer normalisation: mean 0 and variance 1, then a factor and a term for each dimension. */
  norm(rows, name) {
    const factor = this.weights[`${name}.weight`].numbers, term = this.weights[`${name}.bias`].numbers;
    return rows.map((row) => {
      const mean = row.reduce((a, b) => a + b, 0) / row.length;
      const variance = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
      return row.map((x, d) => ((x - mean) / Math.sqrt(variance + 1e-5)) * factor[d] + term[d]);
    });
  }

  /** Embeddings times √D, plus positions. */
  embed(ids) {
    const {numbers, columns} = this.table;
    return ids.map((id, place) => {
      const where = position(place, columns), start = id * columns;
      return where.map((p, d) => numbers[start + d] * Math.sqrt(columns) + p);
    });
  }

  /** Multi-head attention of rows over others; keeps the weights of each head. */
  attend(rows, others, name, mask, kept) {
    const [query, key, value] = this.weights[`${name}.joint.weight`]
      ? ["query", "key", "value"].map((_, third) => this.linear(rows, `${name}.joint`)
        .map((row) => row.subarray((third * row.length) / 3, ((third + 1) * row.length) / 3)))
      : [[rows, "query"], [others, "key"], [others, "value"]].map(([x, part]) =>
        this.linear(x, `${name}.${part}`));
    const width = query[0].length / this.heads, out = rows.map(() => []);
    kept[name.replace("_attention", "")] = Array.from({length: this.heads}, (_, head) => {
      const cut = (each) => each.map((row) => row.subarray(head * width, (head + 1) * width));
      const weights = attentionWeights(cut(query), cut(key), {mask});
      mixed(weights, cut(value)).forEach((row, i) => out[i].push(...row));
      return weights;
    });
    return this.linear(out, `${name}.output`);
  }

  /** x + f(norm(x)), with the norm in front of its part. */
  around(rows, name, part) {
    const added = part(this.norm(rows, `${name}.norm`));
    return rows.map((row, i) => row.map((x, d) => x + added[i][d]));
  }

  feed(rows, name) {
    const inner = this.linear(rows, `${name}.inner`);
    return this.linear(inner.map((row) => row.map((x) => Math.max(0, x))), `${name}.outer`);
  }

  /** Ids of a source, without its end, to the memory and the weights of attention. */
  read(source) {
    const kept = {};
    let x = this.embed([...source, 2]);
    for (let i = 0; i < this.layers[0]; i++) {
      const name = `encoder.${i}`;
      x = this.around(x, `${name}.around_attention`, (y) =>
        this.attend(y, y, `${name}.self_attention`, false, kept));
      x = this.around(x, `${name}.around_feed_forward`, (y) => this.feed(y, `${name}.feed_forward`));
    }
    return {memory: this.norm(x, "encoder_norm"), kept};
  }

  /** The logits of the word after each of the ids, the first of which is the begin. */
  write(memory, inputs, mask = true, kept = {}) {
    let x = this.embed(inputs);
    for (let i = 0; i < this.layers[1]; i++) {
      const name = `decoder.${i}`;
      x = this.around(x, `${name}.around_attention`, (y) =>
        this.attend(y, y, `${name}.self_attention`, mask, kept));
      x = this.around(x, `${name}.around_cross`, (y) =>
        this.attend(y, memory, `${name}.cross_attention`, false, kept));
      x = this.around(x, `${name}.around_feed_forward`, (y) => this.feed(y, `${name}.feed_forward`));
    }
    const {numbers, columns} = this.table;
    return this.norm(x, "decoder_norm").map((row) => {
      const logits = new Float64Array(numbers.length / columns);
      for (let v = 0, w = 0; v < logits.length; v++)
        for (let d = 0; d < columns; d++) logits[v] += numbers[w++] * row[d];
      return [...logits];
    });
  }

  /** Both sides at once, as in training: logits and the weights of every attention, by name. */
  run(source, target, mask = true) {
    const {memory, kept} = this.read(source);
    return {logits: this.write(memory, [1, ...target], mask, kept), kept};
  }

  /** The likeliest word again and again, until the end. */
  translate(source, most = 40) {
    const {memory} = this.read(source), target = [];
    while (target.length < most) {
      const last = this.write(memory, [1, ...target]).at(-1);
      const next = last.indexOf(Math.max(...last));
      if (next === 2) break;
      target.push(next);
    }
    return target;
  }

  /** Minus the logarithm of the probability of each word of a target and its end, on average. */
  loss(source, target, mask = true) {
    const {logits} = this.run(source, target, mask);
    const terms = [...target, 2].map((id, i) => -Math.log(softmax(logits[i])[id]));
    return terms.reduce((a, b) => a + b, 0) / terms.length;
  }
}
