// Il visore dell'attenzione: nessuna libreria, nessuna richiesta di rete. `annotated/study/viewer.py` mette nella pagina
// questo file, lo stile e i dati, e chiama `start`; la casella «Traduci» (`web/live.js`) gli dà i pesi di un modello vivo.
//
// La **scena** è ciò che si può guardare, lo **stato** ciò che si guarda. Ogni parte della figura è una funzione `draw…` che
// da una vista (scena, stato, larghezza) fa nodi, e non cambia nulla; lo stato cambia in un punto solo, `Viewer.set`.
//
// Lettere: v vista, k attenzione (encoder, decoder, cross, self), s frase, l strato, h testa, i riga (query), j colonna (chiave).
// Tutto si conta da 0; soltanto le etichette e l'indirizzo contano da 1.

const SOURCE = "partenza", WRITING = "pezzo da scrivere", KNOWN = "già letto", WHILE = "mentre si scrive guarda";
const ROLES = {
  encoder: { name: "encoder", looks: "guarda", query: `chi guarda (${SOURCE})`, key: `chi è guardato (${SOURCE})` },
  decoder: { name: "decoder", looks: WHILE, query: `chi guarda (${WRITING})`, key: `chi è guardato (${KNOWN})` },
  self: { name: "attenzione", looks: "guarda", query: "chi guarda", key: "chi è guardato" }, // di un modello qualunque
  cross: { name: "incrociata", looks: WHILE, query: `chi guarda (${WRITING})`, key: `chi è guardato (${SOURCE})` },
};
const BLOCKS = [["all", "tutto"], ["aa", "A → A"], ["ab", "A → B"], ["ba", "B → A"], ["bb", "B → B"]]; // di due frasi lette insieme
const MORE = "#0b8a83", LESS = "#c2408f"; // nella differenza: di più e di meno nella seconda frase
const THIN = 0.02; // d'insieme, una linea più leggera di così non si disegna
const MANY = 4; // con più canali, di un pezzo si legge soltanto chi guarda
const LISTED = 5; // quanti pezzi elenca il riquadro prima di «altri»
const NARROW = 560; // sotto questa larghezza si vede una frase alla volta
const MINIATURE = 46; // quanti punti ha, al più, il lato di una miniatura
const FONT = "13px system-ui, sans-serif";
const OPENS = "▁"; // in SentencePiece, il segno che apre una parola

// ---------------------------------------------------------------- elementi, numeri, etichette

// Un elemento con attributi, ascoltatori e figli. I testi entrano come testo: un pezzo «<b>» resta «<b>».
function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child));
  return element;
}
const html = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Mette nodi nuovi al posto dei vecchi; ciò che aveva il fuoco, riconosciuto da `data-chiave`, lo riprende.
function fill(slot, nodes) {
  const { activeElement } = slot.getRootNode(), key = slot.contains(activeElement) && activeElement.dataset.chiave;
  slot.replaceChildren(...nodes.filter((node) => node));
  if (key) slot.querySelector(`[data-chiave="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

const number = (x) => x.toFixed(2).replace(".", ",");
const signed = (x) => (Math.abs(x) < 0.005 ? "" : x < 0 ? "−" : "+") + number(Math.abs(x));
const tone = (x) => Math.min(1, Math.abs(x) ** 0.6); // quanto è coperta una casella di peso x
const range = (n) => Array.from({ length: n }, (_, i) => i);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const color = ({ scene }, h) => scene.colors[h % scene.colors.length];

const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  ruler.font = FONT;
  return ruler.measureText(text).width;
}
const widest = (labels) => Math.max(10, ...labels.map(textWidth));
function shorten(text, width) {
  if (textWidth(text) <= width) return text;
  let n = text.length;
  while (n > 1 && textWidth(text.slice(0, n) + "…") > width) n--;
  return text.slice(0, n).replace(/[\ud800-\udbff]$/, "") + "…";
}

// ---------------------------------------------------------------- pezzi e parole

// Un pezzo che fa parola da sé: punteggiatura (non apostrofo né trattino), oppure speciale, come la fine di frase.
function isSymbol(piece) {
  const text = piece.replaceAll(OPENS, "");
  return /^(<.*>|\[.+\])$/.test(text) || (text !== "" && !/[\p{L}\p{N}'’-]/u.test(text));
}

// A quale parola appartiene ogni pezzo, da 0 (`word_index` in viewer.py). Se nessuno porta «▁», ogni pezzo è una parola.
function wordIndex(pieces) {
  const spaced = pieces.some((piece) => piece.startsWith(OPENS));
  let word = -1;
  return pieces.map((piece, n) => {
    const alone = isSymbol(piece) || n === 0 || isSymbol(pieces[n - 1]);
    return (word += !spaced || piece.startsWith(OPENS) || alone ? 1 : 0);
  });
}

// Un asse: le etichette dei pezzi, con «·» davanti a chi continua una parola, quelle delle parole, e chi sta in quale.
function axis(pieces) {
  const index = wordIndex(pieces), bare = (text) => text.replace(/^▁+/, "") || OPENS;
  const label = (piece, n) => (n > 0 && index[n] === index[n - 1] ? "·" : "") + bare(piece);
  const words = range(pieces.length ? index.at(-1) + 1 : 0).map((w) => bare(pieces.filter((_, n) => index[n] === w).join("")));
  return { index, pieces: pieces.map(label), words };
}

// ---------------------------------------------------------------- pesi e scena

// I pesi arrivano compressi: prima i byte bassi di tutti i codici, poi gli alti.
async function inflate(text) {
  const binary = atob(text), packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer()), codes = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < codes.length; i++) codes[i] = bytes[i] | (bytes[codes.length + i] << 8);
  return codes;
}

// Il codice 0 è lo zero esatto; il codice c > 0 dice che il peso, che zero non è, sta fra (c-1)/levels e c/levels. Dove, lo si
// ricava dalla riga, che deve sommare a uno (`dequantize` in viewer.py fa lo stesso).
function dequantize(codes, start, rows, columns, levels) {
  const weights = new Float64Array(rows * columns);
  for (let r = 0; r < rows; r++) {
    const row = codes.subarray(start + r * columns, start + (r + 1) * columns);
    let sum = 0, count = 0;
    for (const code of row) if (code) { sum += code - 1; count++; }
    const rest = clamp((levels - sum) / count, 1e-9, 0.999);
    row.forEach((code, j) => { weights[r * columns + j] = code ? (code - 1 + rest) / levels : 0; });
  }
  return weights;
}

// Una mappa { kind, N, h, T, S, queries, keys } con i suoi pesi (N·h·T·S) e i due assi. Quelle che si possono aprire hanno anche
// `vectors(l, h, i)`, la query di una riga e le chiavi fra cui sceglie.
const withAxes = (map, weights) => ({ ...map, weights, query: axis(map.queries), key: axis(map.keys) });

// Le mappe di ogni frase, dai dati che Python ha scritto nella pagina.
async function readMaps({ sentences, weights, levels }) {
  const codes = await inflate(weights);
  let offset = 0;
  return sentences.map((maps) => maps.map((map) => {
    const rows = map.N * map.h * map.T, start = offset;
    offset += rows * map.S;
    return withAxes(map, dequantize(codes, start, rows, map.S, levels));
  }));
}

// Query e chiavi di uno strato, dai dati di Python: prima le query, testa per testa, poi le chiavi. Un numero è il suo codice,
// contato da 32768, per `step`.
async function readVectors({ h: H, T, S }, { d_k, step, codes }) { // → `vectors` della mappa: q (d_k,), K (S, d_k)
  const numbers = Float64Array.from(await inflate(codes), (code) => (code - 32768) * step);
  const vector = (n) => numbers.subarray(n * d_k, (n + 1) * d_k);
  return (l, h, i) => ({ q: vector(h * T + i), K: range(S).map((j) => vector(H * T + h * S + j)) });
}

// La matrice media di alcune teste, (T, S); con le parole unite si sommano le colonne e si fa la media delle righe.
function meanMatrix(map, l, heads, words) {
  const { T, S, h: H, weights, query, key } = map;
  const rows = words ? query.index : range(T), columns = words ? key.index : range(S);
  const size = (words ? query.words : query.pieces).map((_, r) => rows.filter((x) => x === r).length);
  const matrix = size.map(() => new Float64Array((words ? key.words : key.pieces).length));
  for (const h of heads)
    for (let i = 0; i < T; i++)
      for (let j = 0; j < S; j++)
        matrix[rows[i]][columns[j]] += weights[((l * H + h) * T + i) * S + j] / heads.length / size[rows[i]];
  return matrix;
}

// ---------------------------------------------------------------- leggere una vista

const isPair = ({ scene }) => scene.sentences.length === 2;
const mapOf = ({ scene, state }, s = 0) => scene.sentences[s][state.k];
const role = (v) => ROLES[mapOf(v).kind];
const opened = ({ state }) => state.at[state.k]; // lo strato e le teste in vista
const labels = (v, s, side) => mapOf(v, s)[side][v.state.words ? "words" : "pieces"];
const pairs = ({ scene, state }, side) => scene.pairs[state.k][state.words ? "words" : "pieces"][side];
const mergeable = ({ sentences }) => sentences.flat().some(({ query, key }) => [query, key].some((a) => a.words.length < a.pieces.length));
const focused = ({ state }) => state.over ?? state.focus;

// I canali sono ciò che ha un colore: le teste in vista, oppure la loro media.
function called(v, heads) {
  if (heads.length === 1) return `testa ${heads[0] + 1}`;
  return heads.length === mapOf(v).h ? "media di tutte le teste" : `media delle teste ${heads.map((h) => h + 1).join(", ")}`;
}
function channels(v) {
  const { heads } = opened(v);
  if (v.state.average && heads.length > 1) return [{ name: called(v, heads), color: "var(--inchiostro)", heads }];
  return heads.map((h) => ({ name: called(v, [h]), color: color(v, h), heads: [h] }));
}

const onlyDifference = (v) => v.drawings.every(({ panel }) => panel.signed); // si vede la sola differenza, che è della media delle teste
const shownChannels = (v) => (onlyDifference(v) ? v.drawings[0].panel.channels : channels(v));

// Se il modello legge due frasi insieme, quali pesi si disegnano: quelli di un blocco, o tutti.
function drawn(v) {
  const { scene: { second }, state: { block, words } } = v, { query, key } = mapOf(v);
  if (!second || block === "all") return () => true;
  const [rows, columns] = [query, key].map(({ index }) => (words ? index[second] : second)), [from, to] = block;
  return (i, j) => (i < rows ? "a" : "b") === from && (j < columns ? "a" : "b") === to;
}

// Un pannello è ciò che si disegna: le etichette di righe e colonne e, per ogni canale, una matrice.
function sentencePanel(v, s, l, shown) {
  const filled = shown.map((channel) => ({ ...channel, matrix: meanMatrix(mapOf(v, s), l, channel.heads, v.state.words) }));
  return { id: s, name: isPair(v) ? v.scene.names[s] : "", rows: labels(v, s, "query"), columns: labels(v, s, "key"), channels: filled, drawn: drawn(v) };
}
function differencePanel(v, l, heads) {
  const [a, b] = [0, 1].map((s) => meanMatrix(mapOf(v, s), l, heads, v.state.words));
  const columns = pairs(v, "key"), matrix = pairs(v, "query").map(([i, m]) => Float64Array.from(columns, ([j, n]) => b[m][n] - a[i][j]));
  const both = (side) => pairs(v, side).map(([i, m]) => {
    const [one, two] = [labels(v, 0, side)[i], labels(v, 1, side)[m]];
    return one === two ? one : `${one} | ${two}`;
  });
  return {
    id: 2, signed: true, name: `differenza: ${v.scene.names[1]} meno ${v.scene.names[0]}`,
    rows: both("query"), columns: both("key"), channels: [{ name: called(v, heads), matrix }],
  };
}
function shownPanels(v) { // 0 e 1 le frasi, 2 la differenza; sullo schermo stretto una cosa alla volta
  if (!isPair(v)) return [0];
  return v.state.show !== "both" ? [Number(v.state.show)] : v.width < NARROW ? [0] : [0, 1];
}
const panel = (v, id) => (id < 2 ? sentencePanel(v, id, opened(v).l, channels(v)) : differencePanel(v, opened(v).l, opened(v).heads));

// Il posto n di un pannello in un altro; null = là non c'è.
function carry(v, from, side, n, to) {
  if (n === null || from === to || !isPair(v)) return n;
  const d = from === 2 ? n : pairs(v, side).findIndex((pair) => pair[from] === n);
  return d < 0 ? null : to === 2 ? d : pairs(v, side)[d]?.[to] ?? null;
}
function place(v, id) { // la riga e la colonna scelte in un pannello; null = nessuna
  const at = focused(v);
  return at ? ["query", "key"].map((side) => carry(v, at.panel, side, at[side], id)) : [null, null];
}

// Lo stato riportato fra ciò che la scena contiene.
function settle(scene, state) {
  const maps = scene.sentences[0], k = clamp(state.k, 0, maps.length - 1), words = state.words && mergeable(scene);
  const at = maps.map((map, n) => {
    const { l, heads } = state.at[n] ?? { l: map.N - 1, heads: [0] };
    const known = [...new Set(heads)].filter((h) => h >= 0 && h < map.h).sort((a, b) => a - b);
    return { l: clamp(l ?? map.N - 1, 0, map.N - 1), heads: known.length ? known : [0] };
  });
  const v = { scene, state: { ...state, k, at, words } };
  const size = (id, side) => (id === 2 ? pairs(v, side) : labels(v, id, side)).length;
  const inside = (at, side) => at[side] === null || (at[side] >= 0 && at[side] < size(at.panel, side));
  const kept = (at) => at && at.panel < (isPair(v) ? 3 : 1) && ["query", "key"].every((side) => inside(at, side));
  for (const name of ["focus", "over"]) if (!kept(v.state[name])) v.state[name] = null;
  return v.state;
}

// La riga scelta resta scelta se, cambiando attenzione o passando alle parole, c'è ancora.
function refocus(scene, before, after) {
  const at = before.focus, from = scene.sentences[0][before.k], to = scene.sentences[0][after.k];
  if (!at || at.query === null || at.panel > 0 || from.queries.join(" ") !== to.queries.join(" ")) return null;
  const piece = before.words ? from.query.index.indexOf(at.query) : at.query;
  return { panel: 0, query: after.words ? to.query.index[piece] : piece, key: null };
}

// ---------------------------------------------------------------- lo stato nell'indirizzo

const SHOWS = ["prima", "seconda", "differenza"];

function toFields(v) {
  const { state } = v, { l, heads } = opened(v), at = state.focus;
  const fields = { guarda: mapOf(v).kind, strato: l + 1, teste: heads.map((h) => h + 1).join("_") };
  if (state.words) fields.parole = 1;
  if (state.average) fields.media = 1;
  if (state.block !== "all") fields.blocco = state.block;
  if (state.view === "matrix") fields.vista = "matrice";
  if (isPair(v) && state.show !== "both") fields.frasi = SHOWS[state.show];
  if (at?.panel) fields.su = SHOWS[at.panel];
  if (at && at.query !== null) fields.riga = at.query + 1;
  if (at && at.key !== null) fields.colonna = at.key + 1;
  return fields;
}

function fromFields(scene, state, fields) { // `fields` viene da fuori: ciò che non ha senso non conta
  const count = (text) => (/^\d{1,3}$/.test(text ?? "") ? Number(text) - 1 : null), named = (name) => SHOWS.indexOf(fields.get(name));
  const found = scene.sentences[0].findIndex(({ kind }) => kind === fields.get("guarda")), k = found < 0 ? state.k : found;
  const heads = (fields.get("teste") ?? "").split("_").map(count).filter((h) => h !== null);
  const at = scene.sentences[0].map((_, n) => state.at[n] ?? { l: null, heads: [0] });
  at[k] = { l: count(fields.get("strato")) ?? at[k].l, heads: heads.length ? heads : at[k].heads };
  const [query, key] = [count(fields.get("riga")), count(fields.get("colonna"))], pair = scene.sentences.length === 2;
  return {
    ...state, k, at, words: fields.has("parole"), average: fields.has("media"), over: null,
    view: fields.get("vista") === "matrice" ? "matrix" : "lines",
    block: BLOCKS.some(([name]) => scene.second && name === fields.get("blocco")) ? fields.get("blocco") : "all",
    show: pair && named("frasi") >= 0 ? String(named("frasi")) : "both",
    focus: query === null && key === null ? null : { panel: pair ? Math.max(0, named("su")) : 0, query, key },
  };
}

function fieldsOf(anchor) { // i campi dell'indirizzo, se parla di questa figura
  const [, name, query] = location.hash.match(/^#(.*?)\?(.+)/) ?? []; // un «?» può stare anche nella frase
  return name === encodeURI(anchor) ? new URLSearchParams(query) : null; // spazi e accenti sono codici
}

function remember(address) { // in un riquadro isolato, come quelli di Colab, l'indirizzo non si può cambiare
  try {
    if (address !== location.hash) history.replaceState(null, "", address);
  } catch { /* resta com'è */ }
}

// ---------------------------------------------------------------- comandi

// Un gruppo di scelte esclusive.
function choice(name, title, options, chosen, change) {
  const labels = options.map(([value, text]) => html("label", {},
    html("input", { type: "radio", name, value, checked: value === chosen, "data-chiave": name + value, change: () => change(value) }),
    html("span", { title: text }, text)));
  return html("fieldset", {}, html("legend", {}, title), ...labels);
}

function drawControls(v) {
  const { state, scene } = v, kinds = scene.sentences[0].map((m, k) => [String(k), ROLES[m.kind].name]);
  const shows = [["both", "affiancate"], ["0", scene.names[0]], ["1", scene.names[1]], ["2", "differenza"]];
  const show = isPair(v) ? (state.show === "both" && v.width < NARROW ? "0" : state.show) : "";
  return [
    kinds.length > 1 && choice("k", "Attenzione", kinds, String(state.k), (k) => v.set({ k: Number(k) })),
    choice("view", "Vista", [["lines", "linee"], ["matrix", "matrice"]], state.view, (view) => v.set({ view })),
    scene.second && choice("block", "Frasi", BLOCKS, state.block, (block) => v.set({ block })),
    isPair(v) && choice("show", "Frasi", shows.slice(v.width < NARROW ? 1 : 0), show, (show) => v.set({ show })),
  ];
}

function check(v, name, text) {
  const change = (event) => v.set({ [name]: event.target.checked });
  return html("label", { class: "spunta" }, html("input", { type: "checkbox", checked: v.state[name], "data-chiave": name, change }), text);
}

// Cambia le teste in vista: una sola, o una in più o in meno; una almeno resta.
function setHeads(v, l, heads) {
  v.set({ at: v.state.at.map((one, k) => (k === v.state.k ? { l, heads } : one)) });
}
function toggleHead(v, h) {
  const { l, heads } = opened(v), others = heads.filter((x) => x !== h);
  setHeads(v, l, others.length < heads.length ? (others.length ? others : [h]) : [...heads, h]);
}

// ---------------------------------------------------------------- il modello in miniatura: una riga per strato, una colonna per testa

function drawThumbnail(v, l, h) {
  const s = v.state.show === "1" ? 1 : 0;
  const { rows, columns, channels: [{ matrix }], signed } =
    v.state.show === "2" ? differencePanel(v, l, [h]) : sentencePanel(v, s, l, [{ heads: [h] }]);
  const side = Math.ceil(Math.max(rows.length, columns.length) / MINIATURE), points = (labels) => Math.ceil(labels.length / side);
  const largest = range(points(rows)).map(() => new Float64Array(points(columns))); // un punto vale il suo peso più grande
  matrix.forEach((row, i) => row.forEach((x, j) => {
    const line = largest[Math.floor(i / side)], at = Math.floor(j / side);
    if (Math.abs(x) > Math.abs(line[at])) line[at] = x;
  }));
  const canvas = html("canvas", { width: points(columns), height: points(rows), "aria-hidden": "true" }), pen = canvas.getContext("2d");
  largest.forEach((row, i) => row.forEach((x, j) => {
    pen.globalAlpha = tone(x);
    pen.fillStyle = signed ? (x < 0 ? LESS : MORE) : color(v, h);
    pen.fillRect(j, i, 1, 1);
  }));
  return canvas;
}

function thumbnail(v, l, h) { // il disegno si fa una volta, e si riusa finché mostra la stessa cosa
  const key = [v.state.k, v.state.words, v.state.show, l, h].join();
  if (!v.thumbnails.has(key)) v.thumbnails.set(key, drawThumbnail(v, l, h));
  const { l: at, heads } = opened(v), here = l === at, on = here && heads.includes(h), off = isOff(v, l, h);
  return html("button", {
    type: "button", class: `miniatura${here ? " dello-strato" : ""}${off ? " spenta" : ""}`, style: `--colore: ${color(v, h)}`,
    "aria-label": `strato ${l + 1}, testa ${h + 1}${off ? ", spenta" : ""}`, "aria-pressed": String(on),
    "data-chiave": `testa ${l + 1} ${h}`, tabindex: here && h === heads[0] ? 0 : -1, // un solo passo di tabulazione; dentro, le frecce
    click: (event) => (event.shiftKey && here ? toggleHead(v, h) : setHeads(v, l, [h])), // con Maiusc si aggiunge
  }, v.thumbnails.get(key));
}

function chip(v, h) {
  const { l, heads } = opened(v), on = heads.includes(h);
  return html("button", {
    type: "button", class: "testa", style: `--colore: ${color(v, h)}`, "aria-pressed": String(on), "data-chiave": `testa 0 ${h}`, tabindex: -1,
    "aria-label": `testa ${h + 1}, ${on ? "in vista" : "nascosta"}`, title: "clic: mostra o nasconde; doppio clic: lascia questa sola",
    click: (event) => (event.detail === 2 ? setHeads(v, l, [h]) : toggleHead(v, h)),
  }, String(h + 1));
}

function drawGrid(v) {
  const { N, h: H } = mapOf(v), rows = [range(H).map((h) => chip(v, h)), ...range(N).map((l) => range(H).map((h) => thumbnail(v, l, h)))];
  const name = (r) => html("span", { class: "strato" }, r ? String(r) : "testa");
  return html("div", {
    class: "miniature", role: "group", style: `--teste: ${H}`, keydown: (event) => moveInGrid(v, event),
    "aria-label": `Il modello in miniatura, ${role(v).name}: ${N} strati per ${H} teste`,
  }, ...rows.flatMap((row, r) => [name(r), ...row]));
}

const isShortcut = ({ altKey, ctrlKey, metaKey }) => altKey || ctrlKey || metaKey; // del browser

function moveInGrid(v, event) {
  if (isShortcut(event)) return;
  const [, r, h] = (event.target.dataset.chiave ?? "").split(" ").map(Number), { N, h: H } = mapOf(v);
  if (r === 0 && event.shiftKey && event.key === "Enter") {
    event.preventDefault();
    return setHeads(v, opened(v).l, [h]);
  }
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!move) return;
  event.preventDefault();
  const next = `testa ${clamp(r + move[0], 0, N)} ${clamp(h + move[1], 0, H - 1)}`;
  event.currentTarget.querySelector(`[data-chiave="${next}"]`).focus();
}

// Spegnere una testa è del modello, e può farlo solo un modello vivo.
const headName = (v, l, h) => `${mapOf(v).kind}.${l}.${h}`;
const isOff = (v, l, h) => v.scene.off?.has(headName(v, l, h)) ?? false;

function drawSwitches(v) {
  const { l, heads } = opened(v), { N, h: H } = mapOf(v), all = range(H);
  const offs = !v.scene.off ? [] : heads.map((h) => html("button", {
    type: "button", class: "tutte", "aria-pressed": String(isOff(v, l, h)), "data-chiave": `spegni${h}`, click: () => v.scene.toggle(headName(v, l, h)),
  }, `${isOff(v, l, h) ? "riaccendi" : "spegni"} la testa ${l + 1}.${h + 1}`));
  return html("div", { class: "comandi" },
    H > 1 && html("button", {
      type: "button", class: "tutte", "data-chiave": "tutte", "aria-pressed": String(heads.length === H), click: () => setHeads(v, l, all),
    }, "tutte le teste"),
    H > 1 && check(v, "average", "media"), mergeable(v.scene) && check(v, "words", "parole intere"), ...offs);
}

// ---------------------------------------------------------------- disegni: due colonne di pezzi, o righe e colonne

// il numero come si legge: con il segno nella differenza, un trattino dove il decoder non può guardare
const show = (v, panel, x) => (panel.signed ? signed(x) : x === 0 && ["decoder", "self"].includes(mapOf(v).kind) ? "–" : number(x));
const paint = (panel, c, x) => (panel.signed ? (x < 0 ? LESS : MORE) : panel.channels[c].color);

function layLines({ rows, columns, channels: { length: n }, signed }, width) { // dove sta ogni cosa
  const step = 24, top = 6, room = width * 0.3, digits = n > 1 ? 0 : signed ? 46 : 38, strip = n === 1 ? 9 : clamp(45 / n, 3, 8);
  const left = Math.min(widest(rows), room) + digits + 6; // dove finiscono le etichette di sinistra
  const right = width - Math.min(widest(columns), room) - digits - 6;
  const y = (i) => top + step * (i + 0.5), height = top * 2 + step * Math.max(rows.length, columns.length);
  return { n, step, room, strip, left, right, from: left + n * strip + 4, to: right - n * strip - 4, y, width, height };
}

function curve({ n, from, to, y }, panel, c, i, j, opacity) {
  const x = panel.channels[c].matrix[i][j], middle = (from + to) / 2;
  const beside = (c - (n - 1) / 2) * Math.min(3, 12 / n), [start, end] = [y(i) + beside, y(j) + beside]; // due teste non si coprono
  return svg("path", {
    d: `M${from} ${start}C${middle} ${start} ${middle} ${end} ${to} ${end}`, stroke: paint(panel, c, x),
    "stroke-opacity": opacity(x).toFixed(3), "stroke-width": (1 + 3 * Math.abs(x)).toFixed(2),
    "stroke-dasharray": panel.signed && x < 0 ? "4 3" : null,
  });
}

// Le caselle di un pannello, di una riga o di una colonna: canale, riga, colonna, peso.
const cells = ({ channels, drawn = () => true }, r = null, k = null) => channels.flatMap(({ matrix }, c) => matrix.flatMap((row, i) =>
  (r ?? i) !== i ? [] : (k === null ? range(row.length) : [k]).map((j) => ({ c, i, j, x: row[j] })))).filter(({ i, j }) => drawn(i, j));

// La linea più leggera che si disegna: dove tutto il peso è sparso, anche meno di THIN.
const thin = (panel) => (panel.signed ? THIN : Math.min(THIN, cells(panel).reduce((most, { x }) => Math.max(most, x), 0) / 2 || THIN));

function drawLines(v, panel, at) {
  const { left, right, width, room, step, y } = at, opacity = (x) => (panel.signed ? tone(x) : x);
  const least = thin(panel), lines = cells(panel).filter(({ x }) => Math.abs(x) >= least).map(({ c, i, j }) => curve(at, panel, c, i, j, opacity));
  const label = (side) => (text, i) => {
    const [x, start, span, anchor] = side === "query" ? [left, 0, left + 2, "end"] : [right, right - 2, width - right + 2, "start"];
    return svg("g", { class: "pezzo", [`data-${side}`]: i }, svg("title", {}, text),
      svg("rect", { x: start, y: y(i) - step / 2, width: span, height: step, rx: 4 }),
      svg("text", { x, y: y(i) + 4.5, "text-anchor": anchor }, shorten(text, room)));
  };
  const over = svg("g", { class: "evidenza" });
  return [svg("g", { fill: "none", class: "insieme" }, ...lines), over, ...panel.rows.map(label("query")), ...panel.columns.map(label("key"))];
}

// In evidenza le linee di un pezzo solo; accanto a ogni pezzo che tocca, una striscia per canale e, se il canale è uno, il numero.
function markLines(v, panel, at, i, j) {
  if (i === null && j === null) return [];
  const { n, left, right, strip, width, y } = at;
  const lit = cells(panel, i, j);
  const mark = ({ c, i: row, j: column, x }) => {
    const [near, far, anchor, p] = i === null ? [left + 3 + c * strip, 2, "start", row] : [right - 3 - (n - c) * strip, width - 2, "end", column];
    const look = { class: "striscia", fill: paint(panel, c, x), "fill-opacity": tone(x).toFixed(3) };
    return [svg("rect", { x: near, y: y(p) - 8, width: strip - 1, height: 16, ...look }),
      n === 1 && svg("text", { class: "numero", x: far, y: y(p) + 4.5, "text-anchor": anchor }, show(v, panel, x))];
  };
  return [svg("g", { fill: "none" }, ...lit.map(({ c, i, j }) => curve(at, panel, c, i, j, tone))), ...lit.flatMap(mark)];
}

function layMatrix({ rows, columns }, width) {
  const long = 92, [T, S] = [rows.length, columns.length];
  const left = Math.min(widest(rows), width * 0.28, 110) + 8, reach = Math.min(widest(columns), long);
  const slanted = (width - left - reach * 0.62) / S >= 13; // nomi obliqui se ci stanno, se no verticali
  const cell = clamp((width - left - (slanted ? reach * 0.62 : 4)) / S, 9, 30);
  const top = reach * (slanted ? 0.8 : 1) + 14, right = left + cell * S, bottom = top + cell * T;
  const x = (j) => left + cell * j, y = (i) => top + cell * i;
  return { T, S, left, right, top, bottom, cell, reach, long, slanted, x, y, width: Math.max(width, right + 2), height: bottom + 4 };
}
const centered = ({ x, y }, name, i, j, text) => svg("text", { class: name, x: x(j + 0.5), y: y(i + 0.5) + 4, "text-anchor": "middle" }, text);

// Una casella ha tante strisce quanti sono i canali.
function drawMatrix(v, panel, at) {
  const { T, S, left, right, top, bottom, cell, reach, long, slanted, x, y } = at, n = panel.channels.length, size = cell < 12 ? "small" : null;
  const boxes = cells(panel).filter(({ x }) => Math.abs(x) >= 0.002).flatMap(({ c, i, j, x: w }) => {
    const look = { fill: paint(panel, c, w), "fill-opacity": tone(w).toFixed(3) };
    return [svg("rect", { x: x(j + c / n), y: y(i), width: cell / n, height: cell, ...look }),
      panel.signed && Math.abs(w) >= 0.05 && centered(at, "segno", i, j, w < 0 ? "−" : "+")];
  });
  const down = range(S + 1).map((j) => `M${x(j)} ${top}V${bottom}`), across = range(T + 1).map((i) => `M${left} ${y(i)}H${right}`);
  const rowLabel = (text, i) => svg("g", { class: "pezzo", "data-query": i }, svg("title", {}, text),
    svg("rect", { x: 0, y: y(i), width: left - 3, height: cell, rx: 4 }),
    svg("text", { class: size, x: left - 7, y: y(i + 0.5) + 4.5, "text-anchor": "end" }, shorten(text, left - 8)));
  const turn = (j) => `translate(${x(j + 0.5)} ${top - 7}) rotate(${slanted ? -52 : -90})`;
  const columnLabel = (text, j) => svg("g", { class: "pezzo", "data-key": j, transform: turn(j) }, svg("title", {}, text),
    svg("rect", { x: -2, y: -cell / 2, width: reach + 6, height: cell, rx: 4 }),
    svg("text", { class: size, x: 2, y: slanted ? 2 : 4.5 }, shorten(text, long)));
  return [svg("path", { class: "reticolo", d: [...down, ...across].join("") }), svg("g", {}, ...boxes), svg("g", { class: "evidenza" }),
    svg("rect", { class: "campo", x: left, y: top, width: right - left, height: bottom - top }),
    ...panel.rows.map(rowLabel), ...panel.columns.map(columnLabel)];
}

function markMatrix(v, panel, at, i, j) {
  const { left, right, top, bottom, cell, x, y } = at, fits = panel.channels.length === 1 && cell >= 28 && (i !== null || j !== null);
  const numbers = !fits ? [] : cells(panel, i, j);
  return [svg("g", { fill: "none", class: "mirino" },
    i !== null && svg("rect", { x: left, y: y(i), width: right - left, height: cell }),
    j !== null && svg("rect", { x: x(j), y: top, width: cell, height: bottom - top }),
    i !== null && j !== null && svg("rect", { class: "casella", x: x(j), y: y(i), width: cell, height: cell })),
  ...numbers.map((one) => centered(at, "cifra", one.i, one.j, show(v, panel, one.x)))]; // se c'è posto, i numeri stanno nelle caselle
}

const FORMS = {
  lines: { lay: layLines, draw: drawLines, mark: markLines, step: stepInLines, axes: ["", ""] },
  matrix: { lay: layMatrix, draw: drawMatrix, mark: markMatrix, step: stepInMatrix, axes: ["righe: ", "colonne: "] },
};

// ---------------------------------------------------------------- il palco: titolo, pannelli, legenda

const titleOf = (v) => `${role(v).name} · strato ${opened(v).l + 1} · `;

function drawPicture(v, panel, width) {
  const form = FORMS[v.state.view], at = form.lay(panel, width);
  const what = [panel.name, role(v).name, `strato ${opened(v).l + 1}`, ...panel.channels.map((c) => c.name)].filter(Boolean).join(", ");
  const picture = svg("svg", {
    width: at.width, height: at.height, viewBox: `0 0 ${at.width} ${at.height}`, tabindex: 0, role: "application", "data-chiave": `pannello${panel.id}`,
    "aria-roledescription": "mappa di attenzione",
    "aria-label": `${what}: ${panel.rows.length} pezzi guardano, ${panel.columns.length} sono guardati. Frecce per spostarsi, Esc per lasciare.`,
    pointerover: (event) => hover(v, panel, at, event),
    pointermove: (event) => event.target.classList.contains("campo") && hover(v, panel, at, event),
    pointerleave: () => v.set({ over: null }),
    click: (event) => pin(v, panel, at, event),
    keydown: (event) => moveInPicture(v, panel, event),
  }, ...form.draw(v, panel, at));
  return { panel, picture, at, form };
}

// Che cosa resta fuori dalla differenza, e come si leggono i segni.
function note(v, panel) {
  const lonely = (side, s) => labels(v, s, side).filter((_, n) => !pairs(v, side).some((p) => p[s] === n));
  const out = new Set(["query", "key"].flatMap((side) => [...lonely(side, 0), ...lonely(side, 1)]));
  const named = [...out].map((text) => `«${text}»`).join(" ");
  return html("p", { class: "nota" },
    `${panel.channels[0].name}. + (linea piena): di più in «${v.scene.names[1]}»; − (tratteggiata): di meno. `,
    out.size ? `Senza corrispondente, quindi fuori: ${named}.` : "Tutti i pezzi hanno un corrispondente.");
}

function drawFigure(v, { panel, picture, at, form }) {
  const axes = [form.axes[0] + role(v).query, "→", form.axes[1] + role(v).key];
  return html("figure", { style: `max-width: ${at.width}px` },
    panel.name && html("figcaption", {}, panel.name),
    html("div", { class: "assi" }, ...axes.map((text) => html("span", {}, text))),
    html("div", { class: "disegno" }, picture),
    panel.signed && note(v, panel));
}

function drawLegend(v) {
  const legend = (...parts) => html("p", { class: "nota legenda" }, ...parts);
  if (onlyDifference(v)) return legend("Se nessun pezzo resta fuori, le differenze di ogni riga sommano a 0.");
  const notch = (x) => [html("span", { class: "tacca", style: `--velo: ${tone(x)}` }), html("span", {}, number(x))];
  if (v.state.view === "matrix") return legend("peso", ...[0.05, 0.1, 0.25, 0.5, 1].flatMap(notch), "ogni riga somma a 1");
  const least = Math.min(...v.drawings.map(({ panel }) => thin(panel))).toLocaleString("it", { maximumSignificantDigits: 1 });
  return legend(`Più una linea è netta e spessa, più il peso è grande; sotto ${least} non è disegnata. I pesi di chi guarda${v.state.block === "all" ? "" : ", in tutti i blocchi,"} sommano a 1.`);
}

function drawStage(v) {
  const ids = shownPanels(v), gap = 16, beside = ids.length === 1 && v.width >= 640; // il disegno accanto al modello
  const { h: H } = mapOf(v), large = 720, least = Math.max(250, Math.min(34 + 27 * H, 0.42 * v.width));
  const grid = Math.floor(clamp(v.width - large - gap, least, Math.max(least, 34 + 49 * H))); // alle miniature ciò che il disegno lascia
  const room = Math.min(ids.length > 1 ? 620 : large, beside ? v.width - grid - gap : (v.width - gap * (ids.length - 1)) / ids.length);
  v.root.style.setProperty("--lato", `${grid}px`);
  v.shape = beside ? "largo" : ids.length > 1 ? "coppia" : "stretto";
  v.drawings = ids.map((id) => drawPicture(v, panel(v, id), Math.floor(room)));
  const name = (c) => html("span", { class: "canale", style: `--colore: ${c.color}` }, c.name);
  return [html("p", { class: "titolo" }, titleOf(v), ...shownChannels(v).flatMap((c) => [name(c), " "])),
    html("div", { class: "scena", style: `--colonne: ${ids.length}` }, ...v.drawings.map((drawing) => drawFigure(v, drawing))),
    drawLegend(v)];
}

function drawMarks(v) { // ciò che cambia quando si indica un pezzo, senza ridisegnare il resto
  for (const { panel, picture, at, form } of v.drawings) {
    const [i, j] = place(v, panel.id);
    picture.querySelector(".evidenza").replaceChildren(...form.mark(v, panel, at, i, j).filter(Boolean));
    picture.querySelector(".insieme")?.classList.toggle("sfondo", i !== null || j !== null);
    for (const piece of picture.querySelectorAll(".pezzo"))
      piece.classList.toggle("scelto", piece.dataset.query === String(i) || piece.dataset.key === String(j));
  }
}

// ---------------------------------------------------------------- indicare un pezzo: col puntatore, col dito, con la tastiera

function pointed({ T, S, cell, left, top, width }, event) { // riga e colonna sotto il puntatore; nulla se non c'è un pezzo
  if (event.target.classList.contains("campo")) {
    const box = event.currentTarget.getBoundingClientRect(), scale = width / box.width;
    const at = (client, edge, origin, count) => clamp(Math.floor(((client - edge) * scale - origin) / cell), 0, count - 1);
    return [at(event.clientY, box.top, top, T), at(event.clientX, box.left, left, S)];
  }
  const piece = event.target.closest(".pezzo");
  return piece && ["query", "key"].map((side) => (side in piece.dataset ? Number(piece.dataset[side]) : null));
}
const spot = ({ id }, [query, key]) => ({ panel: id, query, key });

function hover(v, panel, at, event) {
  const found = pointed(at, event);
  if (found) v.set({ over: spot(panel, found) });
}
function pin(v, panel, at, event) { // un clic fissa il pezzo, un altro sullo stesso lo lascia
  const found = pointed(at, event), now = v.state.focus && place({ ...v, state: { ...v.state, over: null } }, panel.id);
  const same = found && now && found[0] === now[0] && found[1] === now[1];
  v.set({ focus: found && !same ? spot(panel, found) : null, over: same ? null : v.state.over });
}
function moveInPicture(v, panel, event) {
  if (isShortcut(event)) return;
  const [i, j] = place(v, panel.id);
  if (event.key === "Escape") return v.set({ focus: null, over: null });
  const found = FORMS[v.state.view].step(event.key, i, j, panel.rows.length, panel.columns.length);
  if (!found) return;
  event.preventDefault();
  v.set({ focus: spot(panel, found), over: null });
  const { picture } = v.drawings.find((drawing) => drawing.panel.id === panel.id);
  (picture.querySelector(".casella") ?? picture.querySelector(".scelto")).scrollIntoView({ block: "nearest", inline: "nearest" });
}
// Nelle linee: su e giù lungo una colonna, a sinistra chi guarda, a destra chi è guardato.
function stepInLines(key, i, j, T, S) {
  const step = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }[key], now = i ?? j ?? -1;
  if (step) return i === null && j !== null ? [null, clamp(j + step, 0, S - 1)] : [clamp(now + step, 0, T - 1), null];
  if (key === "ArrowLeft") return [clamp(now, 0, T - 1), null];
  if (key === "ArrowRight") return [null, clamp(now, 0, S - 1)];
}
// Nella matrice: una riga intera, poi le sue caselle; sopra la prima casella, la colonna intera.
function stepInMatrix(key, i, j, T, S) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity] };
  if (!moves[key]) return;
  const [di, dj] = moves[key];
  const go = (n, step, size, other) => { // null = l'intestazione: vi si può stare se l'altra coordinata c'è
    const next = clamp((n ?? -1) + step, -1, size - 1);
    return next >= 0 ? next : other === null ? 0 : null;
  };
  if (i === null && j === null) return [0, null];
  return di ? [go(i, di, T, j), j] : [i, go(j, dj, S, i)];
}

// ---------------------------------------------------------------- il riquadro: in parole, con i numeri

const entry = (text, value) => html("span", { class: "voce" }, text, html("b", {}, value));
function ranked(values, texts, plain) {
  const order = range(values.length).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  const top = order.slice(0, LISTED).filter((n, rank) => rank === 0 || Math.abs(values[n]) >= 0.005);
  const others = order.slice(top.length), rest = others.reduce((sum, n) => sum + values[n], 0);
  const items = top.flatMap((n) => [entry(`${texts[n]} `, plain(values[n])), " "]);
  return others.length ? [...items, entry(others.length > 1 ? `altri ${others.length}: ` : "un altro: ", plain(rest))] : items;
}
function sentence(v, panel, { matrix }, i, j) {
  const { rows, columns } = panel, plain = panel.signed ? signed : number, { looks } = role(v);
  if (j === null) return [`«${rows[i]}» ${looks}: `, ...ranked([...matrix[i]], columns, plain)];
  if (i !== null) return [`«${rows[i]}» ${looks} «${columns[j]}»: `, html("b", {}, show(v, panel, matrix[i][j]))];
  const column = matrix.map((row) => row[j]), total = column.reduce((a, b) => a + b, 0);
  return [`«${columns[j]}» è guardato da: `, ...ranked(column, rows, plain), ` (in tutto ${plain(total)})`];
}
function describe(v, panel) {
  const [i, j] = place(v, panel.id), name = html("i", {}, `${panel.name} · `);
  if (i === null && j === null) return [html("p", {}, name, "questo pezzo non ha un corrispondente.")];
  const one = ["encoder", "self"].includes(mapOf(v).kind) && !isPair(v) && (i === null || j === null); // lo stesso pezzo guarda ed è guardato
  const both = one && panel.channels.length <= MANY;
  const views = both ? [[i ?? j, null], [null, i ?? j]] : [[i, j]];
  return panel.channels.flatMap((channel, c) => views.map(([a, b], n) => html("p", {},
    isPair(v) && c + n === 0 && name,
    n === 0 && html("span", { class: "canale", style: `--colore: ${channel.color ?? "transparent"}` }, `${channel.name} · `),
    ...sentence(v, panel, channel, a, b))));
}
function drawReadout(v) {
  const hint = `${TOUCH() ? "Tocca un pezzo" : "Passa su un pezzo, toccalo o usa le frecce"}: qui si legge che cosa guarda e chi lo guarda. Un clic lo fissa.`;
  return focused(v) ? v.drawings.flatMap(({ panel }) => describe(v, panel)) : [html("p", {}, hint)];
}

// ---------------------------------------------------------------- dentro un peso: la query, le chiavi, gli addendi

// Un vettore in quadretti: i numeri positivi in alto, i negativi in basso, coperti quanto valgono rispetto a `most`.
function drawVector(x, most) {
  const canvas = html("canvas", { width: x.length, height: 2, "aria-hidden": "true" }), pen = canvas.getContext("2d");
  x.forEach((value, n) => {
    pen.globalAlpha = tone(value / most);
    pen.fillStyle = value < 0 ? LESS : MORE;
    pen.fillRect(n, value < 0 ? 1 : 0, 1, 1);
  });
  return canvas;
}
const peak = (vectors) => vectors.reduce((most, x) => x.reduce((a, b) => Math.max(a, Math.abs(b)), most), 0);

// Il pannello, la riga e la colonna di cui si apre un peso: chi indica una colonna tiene la riga fissata. Null = non scelta.
function insideAt(v) {
  const { over, focus } = v.state, having = (side, ...picked) => picked.find((one) => one && one[side] !== null);
  const row = having("query", over, focus), column = having("key", over, row);
  const { panel } = v.drawings.find(({ panel }) => panel.id === row?.panel) ?? v.drawings[0];
  return [panel, row ? carry(v, row.panel, "query", row.query, panel.id) : null, column ? carry(v, column.panel, "key", column.key, panel.id) : null];
}

// Da dove viene ogni peso di una riga.
function drawInside(v) {
  const { l, heads: [h, ...others] } = opened(v), [panel, i, j] = insideAt(v), { rows, columns, channels: [{ matrix }] } = panel;
  const where = isPair(v) ? " in una delle due frasi" : "";
  if (others.length || v.state.words || panel.signed || i === null)
    return [html("p", {}, `Lascia in vista una testa sola, i pezzi divisi, e scegli un pezzo che guarda${where}.`)];
  const { kind, vectors } = mapOf(v, panel.id), { q, K } = vectors(l, h, i), d_k = q.length;
  const weights = matrix[i], seen = range(columns.length).filter((n) => weights[n] > 0); // gli altri li vieta la maschera
  const keys = seen.map((n) => K[n]), terms = keys.map((k) => k.map((x, n) => (x * q[n]) / Math.sqrt(d_k)));
  const first = seen.indexOf(seen.includes(j) ? j : weights.indexOf(Math.max(...weights)));
  const order = range(d_k).sort((a, b) => terms[first][b] - terms[first][a]), [mostVector, mostTerm] = [peak([q, ...keys]), peak(terms)];
  const vector = (x, most) => drawVector(order.map((n) => x[n]), most);
  const row = (title, ...tds) => html("tr", {}, html("th", { scope: "row" }, title), ...tds.map((one) => html("td", {}, one)));
  const line = (n, r) => row(columns[n], vector(keys[r], mostVector), vector(terms[r], mostTerm), signed(terms[r].reduce((a, b) => a + b, 0)), number(weights[n]));
  const who = `${["encoder", "self"].includes(kind) ? "" : "chi scrive "}«${rows[i]}»`; // nel decoder guarda chi ha letto fin lì
  return [
    html("p", {}, `${panel.name && `${panel.name} · `}Strato ${l + 1}, testa ${h + 1}: quanto ${who} guarda ogni pezzo. La sua query e la chiave di un pezzo hanno ${d_k} numeri: `,
      `si moltiplicano posto per posto, si divide per √${d_k}, si somma; la softmax delle somme dà i pesi.`),
    html("table", {}, html("tr", {}, html("td"), ...["query e chiavi", "addendi", "somma", "peso"].map((text) => html("th", { scope: "col" }, text))),
      row("query", vector(q, mostVector), "", "", ""), ...seen.map(line)),
    html("p", { class: "nota" }, ...[[MORE, "positivi, in alto"], [LESS, "negativi, in basso"]].flatMap(([color, text]) => [html("span", { class: "canale", style: `--colore: ${color}` }, text), "; "]),
      `più un quadretto è pieno, più il numero è lontano da zero, e gli addendi hanno una scala loro. I ${d_k} posti stanno in ogni riga nello stesso ordine, dall'addendo più grande di «${columns[seen[first]]}» al più piccolo.`)];
}

// Se si guarda altrove: la pagina porta i vettori di uno strato solo.
function offerLayer(v, k, l) {
  const there = `${ROLES[v.scene.sentences[0][k].kind].name}, strato ${l + 1}`;
  const click = () => {
    v.set({ k, at: v.state.at.map((one, n) => (n === k ? { ...one, l } : one)) });
    v.inside.focus({ preventScroll: true }); // il bottone sparisce
  };
  return [html("p", {}, `Questa pagina porta le query e le chiavi di uno strato solo: ${there}.`),
    html("button", { type: "button", class: "tutte", "data-chiave": "strato", click }, "Apri quello strato")];
}

// ---------------------------------------------------------------- piede: tabella, aiuto, salvare

const TOUCH = () => matchMedia("(hover: none)").matches; // uno schermo che si tocca

function fold(v, name, title, content) { // si apre e si chiude; il contenuto si fa solo da aperto
  const toggle = (event) => v.set({ [name]: event.target.open });
  return html("details", { class: name, open: v.state[name], toggle }, html("summary", { "data-chiave": name }, title), v.state[name] && content());
}

function drawTable(v) {
  const roles = ` (righe: ${role(v).query}; colonne: ${role(v).key})`;
  const tds = (panel, row) => [...row].map((x) => html("td", {}, show(v, panel, x)));
  const one = (panel, channel) => html("table", {},
    html("caption", {}, [panel.name, channel.name].filter(Boolean).join(" · ") + roles),
    html("tr", {}, html("td"), ...panel.columns.map((text) => html("th", { scope: "col" }, text))),
    ...panel.rows.map((text, i) => html("tr", {}, html("th", { scope: "row" }, text), ...tds(panel, channel.matrix[i]))));
  const tables = v.drawings.flatMap(({ panel }) => panel.channels.map((channel) => one(panel, channel)));
  return html("div", { class: "disegno", tabindex: 0, role: "region", "aria-label": "Tabella dei numeri" }, ...tables);
}

function drawHelp(v) {
  const touch = TOUCH(), tips = [
    "Le miniature sono tutto il modello: una riga per strato, una colonna per testa. " +
      (touch ? "Un tocco apre una testa." : "Un clic apre una testa; con Maiusc, la si aggiunge a quelle in vista."),
    `I numeri colorati mostrano e nascondono le teste${touch ? "" : "; un doppio clic (o Maiusc+Invio) ne lascia una sola"}.`,
    touch ? "Tocca un pezzo per vedere che cosa guarda e chi lo guarda; toccalo ancora per lasciarlo."
      : "Passa su un pezzo per vedere che cosa guarda e chi lo guarda. Un clic lo fissa, un altro lo lascia.",
    !touch && "Da tastiera: Tab passa da una parte all'altra; nelle miniature e nel disegno si va con le frecce, Invio sceglie, Esc lascia.",
    mergeable(v.scene) && "«Parole intere» unisce i pezzi di una parola: i pesi si sommano sulle colonne e si mediano sulle righe, " +
      "che così sommano ancora a 1. Il segno · apre un pezzo che continua la parola.",
    v.scene.second && "Il modello ha letto due frasi insieme, A e poi B: «A → B» lascia soltanto i pesi da un pezzo di A a uno di B. I numeri non cambiano.",
    v.scene.inside && "«Dentro un peso» mostra il conto di ogni peso: la query di chi guarda, le chiavi, gli addendi dei loro prodotti.",
    v.scene.off && "«Spegni la testa» la toglie al modello, che traduce senza: guarda ancora, ma non riporta nulla.",
    v.scene.levels && `I pesi di questa vista hanno un errore inferiore a ${String(1 / v.scene.levels).replace(".", ",")}.`,
  ];
  return html("ul", {}, ...tips.filter(Boolean).map((text) => html("li", {}, text)));
}

function drawFoot(v) {
  const act = (name, text, click) => html("button", { type: "button", class: "tutte", "data-chiave": name, click }, text);
  return [
    html("div", { class: "comandi" }, self === top && act("link", "Copia il collegamento", () => copyLink(v)), act("svg", "Salva SVG", () => saveSvg(v)),
      act("png", "Salva PNG", () => savePng(v)), html("span", { class: "esito", "aria-live": "polite" })),
    fold(v, "tabella", "Tabella dei numeri", () => drawTable(v)),
    v.scene.inside && fold(v, "dentro", "Dentro un peso", () => v.inside),
    fold(v, "aiuto", "Come si usa", () => drawHelp(v)),
  ];
}

async function copyLink(v) {
  remember(v.address(toFields(v)));
  const said = v.host.shadowRoot.querySelector(".esito");
  try {
    await navigator.clipboard.writeText(location.href);
    said.textContent = "Collegamento copiato.";
  } catch {
    said.textContent = "Il collegamento è nella barra dell'indirizzo: copialo da lì.";
  }
}

// ---------------------------------------------------------------- salvare il disegno

// I pannelli in un file solo, con il titolo e gli assi, sempre su fondo chiaro. Lo stile vi entra risolto: i programmi di
// disegno non conoscono le variabili del foglio.
function pictureFile(v) {
  const gap = 16, top = 46, heading = titleOf(v) + shownChannels(v).map((c) => c.name).join(", ");
  const line = (x, y, text, more) => svg("text", { x, y, ...more }, text);
  let x = gap;
  const parts = v.drawings.flatMap(({ panel, picture, at, form }) => {
    const left = x, copy = picture.cloneNode(true), bold = { "font-weight": 700 };
    for (const [name, value] of Object.entries({ x: left, y: top + 20 })) copy.setAttribute(name, value);
    for (const name of ["tabindex", "data-chiave"]) copy.removeAttribute(name);
    x += at.width + gap;
    return [panel.name && line(left, top, panel.name, bold), line(left, top + 15, `${form.axes[0]}${role(v).query} → ${form.axes[1]}${role(v).key}`), copy];
  });
  const width = Math.ceil(Math.max(x, textWidth(heading) * 1.2 + 2 * gap)), height = Math.ceil(top + 20 + gap + Math.max(...v.drawings.map(({ at }) => at.height)));
  const whole = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, svg("style", {}, pictureStyle(v)),
    svg("rect", { width, height, fill: "var(--fondo)" }), line(gap, 24, heading[0].toUpperCase() + heading.slice(1), { "font-weight": 700 }), ...parts.filter(Boolean));
  const colors = lightColors(v.host), text = new XMLSerializer().serializeToString(whole);
  return { width, height, text: text.replace(/var\((--[\w]+)\)/g, (_, name) => colors(name)).replace(/[\x00-\x08\x0b\x0c\x0e-\x1f]/g, "") };
}

function pictureStyle(v) { // le sole regole che riguardano il disegno
  const rules = [...v.host.shadowRoot.querySelector("style").sheet.cssRules];
  const used = rules.filter(({ selectorText }) => selectorText && !/[:*]/.test(selectorText) && v.drawings.some(({ picture }) => picture.querySelector(selectorText)));
  return used.map((rule) => rule.cssText).join("\n");
}

function lightColors(host) {
  const { theme } = host.dataset;
  host.dataset.theme = "light";
  const style = getComputedStyle(host), names = ["--fondo", "--inchiostro", "--tenue", "--filo", "--velina", "--accento"];
  const values = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
  host.dataset.theme = theme;
  return (name) => values[name];
}

function download(v, blob, extension) {
  const { l, heads } = opened(v), link = html("a", { href: URL.createObjectURL(blob) });
  link.download = `attenzione-${role(v).name}-${l + 1}.${heads.map((h) => h + 1).join("-")}.${extension}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function saveSvg(v) {
  download(v, new Blob([pictureFile(v).text], { type: "image/svg+xml" }), "svg");
}

async function savePng(v) {
  const { width, height, text } = pictureFile(v), image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: reject }));
  const canvas = html("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  canvas.toBlob((blob) => download(v, blob, "png"), "image/png");
}

// ---------------------------------------------------------------- mettere insieme

// Ciò che si guarda all'apertura, da come lo scrive Python.
function firstState({ k, l, heads, average, view, words, focus }) {
  const at = [];
  at[k] = { l, heads };
  return { k, at, average, words, view, show: "both", block: "all", focus: focus === null ? null : { panel: 0, query: focus, key: null }, over: null, tabella: false, dentro: false, aiuto: false };
}

// Una vista dentro `host`. `changed` sa di ogni cambiamento chiesto da chi legge; `address` fa l'indirizzo che la ritrova.
class Viewer {
  constructor(host, css, state, { changed = () => {}, address } = {}) {
    const names = ["comandi", "modello", "palco", "riquadro", "piede"], slots = names.map((name) => html("div", { class: name }));
    this.slots = Object.fromEntries(names.map((name, n) => [name, slots[n]]));
    build(this.slots.riquadro, { role: "status", "aria-live": "polite", tabindex: 0 }, []);
    this.inside = html("div", { class: "disegno", tabindex: 0, role: "region", "aria-label": "Dentro un peso", "data-chiave": "conto" });
    this.root = html("div", { class: "vista", role: "group", "aria-label": "Visore dell'attenzione" }, ...slots);
    host.attachShadow({ mode: "open" }).append(html("style", {}, css), this.root);
    followTheme(host);
    Object.assign(this, { host, state, changed, address, scene: null, width: 0, shape: "", drawings: [], thumbnails: new Map() });
  }

  open() { // da qui in poi si disegna, larga quanto il posto che ha
    this.fit();
    new ResizeObserver(() => this.fit()).observe(this.host);
  }

  set(change) { // l'unico punto in cui lo stato cambia
    const before = this.state, next = { ...before, ...change };
    if (next.k !== before.k || next.words !== before.words)
      Object.assign(next, { over: null, focus: "focus" in change ? next.focus : refocus(this.scene, before, next) });
    this.state = settle(this.scene, next);
    const [old, now] = [before, this.state].map((state) => JSON.stringify({ ...state, focus: null, over: null }));
    if (old !== now) this.render();
    else if (JSON.stringify(before) !== JSON.stringify(this.state)) this.point();
    else return;
    this.changed(this);
  }

  show(scene, change = {}) { // un'altra scena, con lo stesso stato o quasi
    Object.assign(this, { scene, thumbnails: new Map(), state: settle(scene, { ...this.state, over: null, ...change }) });
    this.render();
  }

  render() {
    if (!this.width || !this.scene) return;
    fill(this.slots.comandi, drawControls(this));
    fill(this.slots.modello, [drawGrid(this), drawSwitches(this)]);
    fill(this.slots.palco, drawStage(this));
    fill(this.slots.piede, drawFoot(this));
    this.root.dataset.forma = this.shape;
    this.point();
  }

  point() { // quando cambia soltanto il pezzo che si indica
    drawMarks(this);
    this.slots.riquadro.classList.toggle("vuoto", !focused(this));
    this.slots.riquadro.classList.toggle("fissato", this.state.focus !== null);
    fill(this.slots.riquadro, drawReadout(this));
    if (this.state.dentro) fill(this.inside, this.scene.inside(this));
  }

  fit() {
    const now = Math.floor(this.host.clientWidth) - 10;
    if (now <= 0 || now === this.width) return;
    this.width = now;
    this.render();
  }
}

// Tiene il posto della figura finché non è disegnata; falso se è già tenuto.
function reserve(host) {
  if (host.dataset.attesa || host.shadowRoot) return false;
  host.dataset.attesa = "dati";
  host.style.minHeight = "30rem";
  return true;
}

// Prima di stampare si disegna ciò che aspetta di vedersi: anche ciò che si mette ad aspettare in quel momento.
const hidden = new Set();
addEventListener("beforeprint", () => hidden.forEach((draw) => draw()));

// Chiama `draw` quando `host` sta per vedersi, quando l'indirizzo parla della sua figura, o prima di stampare.
function whenNear(host, anchor, draw) {
  const waiting = new AbortController(), { signal } = waiting;
  const now = () => {
    hidden.delete(now);
    watch.disconnect();
    waiting.abort();
    delete host.dataset.attesa;
    host.style.minHeight = "";
    draw();
  };
  const asked = () => fieldsOf(anchor) && now();
  const watch = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && now(), { rootMargin: "600px" });
  host.dataset.attesa = "vista";
  watch.observe(host);
  addEventListener("hashchange", asked, { signal });
  hidden.add(now);
  asked();
}

// Chiamata da ogni vista di una pagina.
function start(id, css, data) {
  for (const host of document.querySelectorAll(`[data-vista="${id}"]`)) {
    if (!reserve(host)) continue; // la stessa uscita può comparire due volte
    mount(host, css, data).catch((error) => {
      host.append("Questo browser non sa mostrare la figura interattiva: aggiornalo.");
      throw error;
    });
  }
}

// Se la figura sta in una soluzione chiusa, la apre.
function reveal(host) {
  host.closest(".toggle-hidden")?.querySelector(".toggle-button")?.click();
}

async function mount(host, css, data) {
  const { names, pairs, levels, colors, second, anchor, vectors, start: { k, l } } = data, sentences = await readMaps(data);
  const here = (v) => v.state.k === k && opened(v).l === l, inside = vectors.length > 0 && ((v) => (here(v) ? drawInside(v) : offerLayer(v, k, l)));
  for (const [s, one] of vectors.entries()) sentences[s][k].vectors = await readVectors(sentences[s][k], one);
  whenNear(host, anchor, () => {
    const state = { ...firstState(data.start), dentro: vectors.length > 0 };
    const viewer = new Viewer(host, css, state, { address: (fields) => `#${anchor}?${new URLSearchParams(fields)}` });
    viewer.show({ sentences, names, pairs, levels, colors, second, inside });
    viewer.open();
    const recall = () => {
      const fields = fieldsOf(anchor);
      if (!fields) return;
      viewer.set(fromFields(viewer.scene, viewer.state, fields));
      reveal(host);
      host.scrollIntoView({ block: "center" });
      viewer.drawings[0]?.picture.focus({ preventScroll: true }); // da tastiera si prosegue da lì
    };
    addEventListener("hashchange", recall);
    recall();
  });
}

// Chiaro o scuro: come la pagina che ci ospita (il libro, Colab, JupyterLab); se non lo dice, come il sistema.
function followTheme(host) {
  const page = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const update = () => {
    const jupyter = { true: "light", false: "dark" }[document.body.dataset.jpThemeLight];
    const named = [page.dataset.theme, page.getAttribute("theme"), jupyter].find((x) => x === "dark" || x === "light");
    host.dataset.theme = named ?? (system.matches ? "dark" : "light");
  };
  update();
  system.addEventListener("change", update);
  for (const element of [page, document.body])
    new MutationObserver(update).observe(element, { attributeFilter: ["data-theme", "theme", "data-jp-theme-light"] });
}
