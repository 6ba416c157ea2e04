// Il Transformer del libro, in JavaScript: legge i pesi che `annotated export --to web` ha scritto e traduce nel browser,
// senza rete e senza librerie. È lo stesso modello di `annotated/transformer.py`, un pezzo alla volta invece che a lotti:
//
//   Tokenizer    dalla frase ai pezzi e ritorno                           capitolo 11
//   Transformer  dagli indici ai logit, con tutti i pesi d'attenzione     capitoli 2–9
//                e dai logit alla frase: greedy                           capitolo 16
//   loadModel    i pesi: un byte ciascuno, una scala per riga             appendice «Nel browser»
//
// Un vettore è un Float32Array; una sequenza di n vettori è un array di n Float32Array, e si scrive (n, d). Le lettere sono
// quelle del libro: S pezzi letti, T pezzi scritti, h teste, d_k = d_model / h, V pezzi del vocabolario.
//
// Mancano cose che in Python ci sono, e qui non servono: le maschere, il dropout, la beam search. Si traduce una frase per
// volta, quindi non c'è riempitivo da nascondere (capitolo 5); e quando il decoder scrive un pezzo, il futuro non esiste ancora.

const UNK = 1, BOS = 2, EOS = 3; // PAD è 0; gli indici fino a EOS sono i pezzi speciali
const SPACE = "▁"; // come SentencePiece scrive lo spazio
const TOP = 5; // quanti candidati si tengono a ogni passo

// ---------------------------------------------------------------- dalla frase ai pezzi (cap. 11)

// SentencePiece porta il testo alla forma NFKC («ﬁ» → «fi», «½» → «1⁄2»), toglie i caratteri di controllo e fa uno spazio di
// ogni segno bianco o invisibile. La tilde larga resta com'è.
const REMOVED = /[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]/g;
const BLANK = /[\t\n\f\r\u061c\u1680\u200b\u200c\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd]/g;
// come li scrivono telefoni e programmi di scrittura, e come li batte la tastiera
const KEYS = [[/[’ʼ´‘‚]/g, "'"], [/[“”„]/g, '"'], [/[–—‐‑−]/g, "-"]];
const straight = (text) => KEYS.reduce((line, [signs, key]) => line.replace(signs, key), text);
const ORDINARY = new RegExp(`[^${REMOVED.source.slice(1, -1)}${BLANK.source.slice(1, -1)}\uff5e]+`, "g");

class Tokenizer {
  constructor(pieces) {
    this.pieces = pieces; // (V,), nell'ordine in cui l'addestramento li ha trovati: dal più frequente
    this.ids = new Map(pieces.map((piece, id) => [piece, id]).slice(EOS + 1)); // il testo non può nominare un pezzo speciale
  }

  // I pezzi di una frase come testo; uno sconosciuto è ciò che vi sta scritto.
  split(text) {
    const plain = straight(text).replace(ORDINARY, (run) => run.normalize("NFKC")).replace(REMOVED, "").replace(BLANK, " ");
    const words = plain.split(" ").filter((word) => word);
    return words.flatMap((word) => this.splitWord(SPACE + word));
  }

  // Da una frase agli indici dei suoi pezzi, EOS compreso.
  encode(text) {
    return [...this.split(text).map((piece) => this.ids.get(piece) ?? UNK), EOS];
  }

  // BPE: si parte dai caratteri e si fonde, finché si può, la coppia vicina che fa il pezzo più frequente.
  splitWord(word) {
    const symbols = [...word];
    for (;;) {
      let first = Infinity, at = -1;
      for (let i = 0; i + 1 < symbols.length; i++) {
        const id = this.ids.get(symbols[i] + symbols[i + 1]);
        if (id < first) [first, at] = [id, i];
      }
      if (at < 0) break;
      symbols.splice(at, 2, symbols[at] + symbols[at + 1]);
    }
    const pieces = [];
    for (const symbol of symbols) { // caratteri ignoti di fila: uno sconosciuto solo
      const more = pieces.length && !this.ids.has(symbol) && !this.ids.has(pieces.at(-1));
      pieces.push(more ? pieces.pop() + symbol : symbol);
    }
    return pieces;
  }

  // La frase di pezzi dati come testo.
  join(pieces) {
    return pieces.join("").replaceAll(SPACE, " ").trimStart();
  }
}

// ---------------------------------------------------------------- i mattoni (cap. 2, 4, 6)

const sum = (x) => x.reduce((total, value) => total + value, 0);
const add = (X, Y) => X.map((x, t) => x.map((value, i) => value + Y[t][i])); // (n, d) + (n, d)

// y = W·x + b. I pesi sono interi di un byte, e ogni riga di W ha la sua scala: si moltiplica una volta sola, alla fine.
// Quattro somme parziali invece di una, perché ognuna non aspetti la precedente: così il ciclo va al doppio.
function product({ rows, columns, weights, scales, bias }, x) { // (columns,) → (rows,)
  const y = new Float32Array(rows);
  for (let r = 0, p = 0; r < rows; r++, p += columns) {
    let a = 0, b = 0, c = 0, d = 0, i = 0;
    for (; i + 3 < columns; i += 4) {
      a += weights[p + i] * x[i];
      b += weights[p + i + 1] * x[i + 1];
      c += weights[p + i + 2] * x[i + 2];
      d += weights[p + i + 3] * x[i + 3];
    }
    for (; i < columns; i++) a += weights[p + i] * x[i];
    y[r] = (a + b + c + d) * scales[r] + (bias ? bias[r] : 0);
  }
  return y;
}

// Lo stesso per quattro vettori insieme, ognuno con la sua somma: ogni peso si legge una volta sola.
function products({ rows, columns, weights, scales, bias }, four) {
  const [x, y, z, w] = four.map((vector) => Float64Array.from(vector)); // così nel ciclo non si convertono
  const Y = four.map(() => new Float32Array(rows));
  for (let r = 0, p = 0; r < rows; r++, p += columns) {
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < columns; i++) {
      const weight = weights[p + i];
      a += weight * x[i];
      b += weight * y[i];
      c += weight * z[i];
      d += weight * w[i];
    }
    [a, b, c, d].forEach((total, k) => { Y[k][r] = total * scales[r] + (bias ? bias[r] : 0); });
  }
  return Y;
}

function linear(matrix, X) { // (n, columns) → (n, rows)
  const Y = [];
  while (Y.length + 3 < X.length) Y.push(...products(matrix, X.slice(Y.length, Y.length + 4)));
  while (Y.length < X.length) Y.push(product(matrix, X[Y.length]));
  return Y;
}

function softmax(x) { // (n,) → (n,): non negativi, di somma 1
  const highest = x.reduce((a, b) => Math.max(a, b), -Infinity);
  const e = Float64Array.from(x, (value) => Math.exp(value - highest));
  const total = sum(e);
  return e.map((value) => value / total);
}

function layerNorm(x, gain, bias) { // (d_model,) → (d_model,): media 0 e varianza 1, poi scala e traslazione apprese
  const mean = sum(x) / x.length;
  const deviation = Math.sqrt(x.reduce((total, value) => total + (value - mean) ** 2, 0) / x.length + 1e-5);
  return x.map((value, i) => ((value - mean) / deviation) * gain[i] + bias[i]);
}

// La codifica posizionale di un posto: seni nei posti pari, coseni nei dispari (cap. 4).
function sinusoid(position, d_model) { // → (d_model,)
  return Float32Array.from({ length: d_model }, (_, i) => {
    const angle = position / 10000 ** ((i - (i % 2)) / d_model);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

// I k indici dei valori più alti, dal più alto. PAD e BOS non si scrivono; UNK soltanto se c'è di che copiare.
function best(values, k, copies) {
  const top = [];
  for (let id = copies ? UNK : EOS; id < values.length; id++) {
    if (id === BOS) continue;
    if (top.length === k && values[id] <= values[top[k - 1]]) continue;
    let i = top.length;
    while (i > 0 && values[id] > values[top[i - 1]]) i--;
    top.splice(i, 0, id);
    if (top.length > k) top.pop();
  }
  return top;
}

// ---------------------------------------------------------------- il modello (cap. 3, 7, 8, 9)

class Transformer {
  constructor(config, parameters) {
    this.config = config; // i campi di `Config`: d_model, d_ff, h, N…
    this.parameters = parameters; // nome, quello di PyTorch → matrice o vettore
    this.heads = { encoder: config.h, decoder: config.h, cross: config.h_cross ?? config.h };
    this.layers = { encoder: config.N, decoder: config.N_decoder ?? config.N, cross: config.N_decoder ?? config.N };
    this.off = new Set(); // le teste spente, per esempio «cross.2.0»: attenzione, strato e testa contati da 0
  }

  linear(name, X) {
    return linear(this.parameters[name + ".weight"], X);
  }

  norm(name, X) {
    const gain = this.parameters[name + ".weight"], bias = this.parameters[name + ".bias"];
    return X.map((x) => layerNorm(x, gain, bias));
  }

  // La connessione residuale: Post-LN come nell'articolo, o Pre-LN (cap. 6).
  residual(name, X, sublayer) { // (n, d_model) → (n, d_model)
    if (this.config.norm_first) return add(X, sublayer(this.norm(name + ".norm", X)));
    return this.norm(name + ".norm", add(X, sublayer(X)));
  }

  feedForward(name, X) { // (n, d_model) → (n, d_model), passando per d_ff
    const inner = this.linear(name + ".0", X).map((x) => x.map((value) => Math.max(0, value)));
    return this.linear(name + ".2", inner);
  }

  // Una pila Pre-LN si chiude con una normalizzazione.
  close(stack, X) {
    return this.config.norm_first ? this.norm(stack + ".norm", X) : X;
  }

  // Attenzione a più teste (cap. 3). Ogni testa confronta la sua fetta delle query con la sua fetta delle chiavi, e con i pesi
  // che ne vengono mescola la sua fetta dei valori; W_o rimette insieme ciò che le teste hanno trovato.
  attend(name, kind, layer, X, { K, V }) { // X (T, d_model); K e V (S, d_model) → uscita (T, d_model), pesi (h, T, S), query e chiavi
    const h = this.heads[kind], d_model = this.config.d_model, d_k = d_model / h;
    const Q = this.linear(name + ".W_q", X), weights = Array.from({ length: h }, () => []);
    const mixed = Q.map((q) => {
      const out = new Float32Array(d_model);
      for (let head = 0, from = 0; head < h; head++, from += d_k) {
        const scores = K.map((k) => {
          let dot = 0;
          for (let i = from; i < from + d_k; i++) dot += q[i] * k[i];
          return dot / Math.sqrt(d_k);
        }); // (S,)
        const w = softmax(scores);
        weights[head].push(w);
        if (this.off.has(`${kind}.${layer}.${head}`)) continue; // spenta: guarda, ma non riporta nulla
        V.forEach((v, s) => {
          for (let i = from; i < from + d_k; i++) out[i] += w[s] * v[i];
        });
      }
      return out;
    });
    return { out: this.linear(name + ".W_o", mixed), weights, Q, K };
  }

  keysValues(name, X) { // (S, d_model) → chiavi e valori, (S, d_model) ciascuno
    return { K: this.linear(name + ".W_k", X), V: this.linear(name + ".W_v", X) };
  }

  // Da indici a vettori: riga della tabella × √d_model, più la posizione (cap. 4 e 9).
  embed(ids, start = 0) { // (n,) → (n, d_model)
    const { columns, weights, scales } = this.parameters["embedding.weight"];
    return ids.map((id, t) => {
      const scale = scales[id] * Math.sqrt(columns);
      return sinusoid(start + t, columns).map((value, i) => value + weights[id * columns + i] * scale);
    });
  }

  // L'encoder legge la frase (cap. 7), e si ferma a ogni strato: una pagina può intanto fare altro. Per il decoder restano le
  // chiavi e i valori di ogni suo blocco.
  *reading(ids) { // (S,) → alla fine, memoria: N_decoder coppie K, V (S, d_model); di ogni blocco pesi (h, S, S), Q e K
    let X = this.embed(ids);
    const attention = [];
    for (let layer = 0; layer < this.layers.encoder; layer++) {
      const name = `encoder.layers.${layer}`;
      X = this.residual(name + ".residuals.0", X, (x) => {
        const { out, ...looked } = this.attend(name + ".self_attention", "encoder", layer, x, this.keysValues(name + ".self_attention", x));
        attention.push(looked);
        return out;
      });
      X = this.residual(name + ".residuals.1", X, (x) => this.feedForward(name + ".feed_forward", x));
      yield;
    }
    X = this.close("encoder", X);
    const memory = Array.from({ length: this.layers.decoder }, (_, layer) =>
      this.keysValues(`decoder.layers.${layer}.cross_attention`, X));
    yield { memory, attention };
  }

  encode(ids) { // tutto insieme
    return [...this.reading(ids)].at(-1);
  }

  // Un passo del decoder (cap. 8): dall'ultimo pezzo scritto ai logit del prossimo. `cache` ha, per blocco, chiavi e valori dei
  // pezzi già scritti; si allunga di una riga, e del pezzo nuovo soltanto si calcolano i prodotti (cap. 16).
  step(id, memory, cache) { // → logit (V,); di ogni blocco i pesi, (h, t) del decoder e (h, S) della cross-attention, con la query e le chiavi
    let x = this.embed([id], cache[0].K.length);
    const attention = { decoder: [], cross: [] };
    const look = (kind, layer, name, x, seen) => {
      const { out, weights, Q: [q], K } = this.attend(name, kind, layer, x, seen); // T = 1: una query, una riga per testa
      attention[kind].push({ weights: weights.map(([row]) => row), q, K });
      return out;
    };
    cache.forEach((known, layer) => {
      const name = `decoder.layers.${layer}`;
      x = this.residual(name + ".residuals.0", x, (x) => {
        const { K, V } = this.keysValues(name + ".self_attention", x);
        known.K.push(...K);
        known.V.push(...V);
        return look("decoder", layer, name + ".self_attention", x, known);
      });
      x = this.residual(name + ".residuals.1", x, (x) => look("cross", layer, name + ".cross_attention", x, memory[layer]));
      x = this.residual(name + ".residuals.2", x, (x) => this.feedForward(name + ".feed_forward", x));
    });
    const [logits] = linear(this.parameters["embedding.weight"], this.close("decoder", x)); // la stessa tabella dell'ingresso
    return { logits, attention };
  }

  emptyCache() {
    return Array.from({ length: this.layers.decoder }, () => ({ K: [], V: [] }));
  }

  // ---------------------------------------------------------------- dai logit alla frase (cap. 16)

  // Scrive la traduzione un pezzo alla volta, ogni volta il più probabile (greedy), e a ogni pezzo rende ciò che è successo: i
  // candidati con le probabilità, i pesi, le query e le chiavi; e, se nella frase c'è uno sconosciuto, il posto di quello più
  // guardato, in media su tutte le teste: lo si copia dove la traduzione ha UNK. I primi pezzi possono essere già decisi: `prefix`.
  *write(source, { extra = 50, prefix = [], encoded = this.encode(source) } = {}) { // source (S,), EOS compreso
    const unknown = source.flatMap((piece, s) => (piece === UNK ? [s] : []));
    const cache = this.emptyCache(), limit = Math.min(source.length + extra, this.config.max_len); // EOS compreso
    let id = BOS;
    for (let t = 0; t < limit && id !== EOS; t++) {
      const { logits, attention } = this.step(id, encoded.memory, cache);
      const probabilities = softmax(logits);
      const top = best(logits, TOP, unknown.length > 0);
      const looked = (s) => sum(attention.cross.flatMap(({ weights }) => weights.map((row) => row[s])));
      const from = unknown.length ? unknown.reduce((a, b) => (looked(b) > looked(a) ? b : a)) : null;
      id = t === limit - 1 ? EOS : prefix[t] ?? top[0];
      yield { id, from, candidates: top.map((id) => ({ id, probability: probabilities[id] })), ...attention };
    }
  }
}

// ---------------------------------------------------------------- i pesi

// Un file è uno script che assegna `annotatedFile`: così si carica anche da disco (file://), dove `fetch` non può.
function loadFile(url) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => { // anche se il file è tagliato a metà: allora non assegna nulla
      const file = globalThis.annotatedFile;
      globalThis.annotatedFile = undefined;
      script.remove();
      if (file) resolve(file);
      else reject(new Error(`${url}: il file è incompleto.`));
    };
    script.onerror = () => {
      script.remove();
      reject(new Error(`${url}: il file non c'è.`));
    };
    document.head.append(script);
  });
}

function decodeBase64(text, bytes, start) { // scrive i byte di `text` in `bytes`, dal posto `start`; rende dove finiscono
  const binary = atob(text);
  for (let i = 0; i < binary.length; i++) bytes[start + i] = binary.charCodeAt(i);
  return start + binary.length;
}

// Prima tutti i float32 (scale, bias, normalizzazioni), poi tutti gli interi. L'indice dice dove comincia ciascuno.
function unpack(index, bytes) { // → nome → matrice { rows, columns, weights, scales, bias } o vettore
  const floats = new Float32Array(bytes.buffer, 0, index.floats), integers = new Int8Array(bytes.buffer, 4 * index.floats);
  const vectors = Object.entries(index.vectors).map(([name, [start, n]]) => [name, floats.subarray(start, start + n)]);
  const parameters = Object.fromEntries(vectors);
  for (const [name, [rows, columns, start]] of Object.entries(index.matrices)) {
    const weights = integers.subarray(start, start + rows * columns); // (rows, columns), una riga dopo l'altra
    const bias = parameters[name.replace(/weight$/, "bias")];
    parameters[name] = { rows, columns, weights, scales: parameters[name + ".scales"], bias };
  }
  return parameters;
}

// Carica il modello che sta nella cartella `url`; `progress` riceve i byte arrivati e quelli in tutto.
async function loadModel(url, progress = () => {}) {
  const index = await loadFile(`${url}/modello.js`);
  const bytes = new Uint8Array(index.bytes);
  const files = Array.from({ length: index.parts }, (_, part) => loadFile(`${url}/pesi-${part}.js?${index.fingerprint}`)); // insieme
  files.forEach((file) => file.catch(() => {})); // un errore lo dà il ciclo
  for (let part = 0, end = 0; part < index.parts; part++) {
    const { fingerprint, data } = await files[part];
    if (fingerprint !== index.fingerprint) throw new Error(`${url}/pesi-${part}.js è di un altro modello.`);
    end = decodeBase64(data, bytes, end);
    progress(end, index.bytes);
  }
  return { model: new Transformer(index.config, unpack(index, bytes)), tokenizer: new Tokenizer(index.pieces) };
}
