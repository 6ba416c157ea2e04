// Il visore dell'attenzione: nessuna libreria, nessuna richiesta di rete. `annotated/viewer.py` mette nella pagina
// questo file, lo stile e i dati, e chiama `start`.
//
// Lettere: k attenzione (encoder, decoder, cross), s frase, l strato, h testa, i riga (query), j colonna (chiave).
// Tutto si conta da 0; soltanto le etichette contano da 1.

const SOURCE = "partenza", WRITING = "pezzo da scrivere", KNOWN = "già letto", WHILE = "mentre si scrive guarda";
const ROLES = {
  encoder: { name: "encoder", looks: "guarda", query: `chi guarda (${SOURCE})`, key: `chi è guardato (${SOURCE})` },
  decoder: { name: "decoder", looks: WHILE, query: `chi guarda (${WRITING})`, key: `chi è guardato (${KNOWN})` },
  cross: { name: "incrociata", looks: WHILE, query: `chi guarda (${WRITING})`, key: `chi è guardato (${SOURCE})` },
};
const MORE = "#0b8a83", LESS = "#c2408f"; // nella differenza: di più e di meno nella seconda frase
const THIN = 0.02; // d'insieme, una linea più leggera di così non si disegna
const TOP = 5; // quanti pezzi elenca il riquadro prima di «altri»
const FONT = "13px system-ui, sans-serif";

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

const number = (x) => x.toFixed(2).replace(".", ",");
const signed = (x) => (Math.abs(x) < 0.005 ? "" : x < 0 ? "−" : "+") + number(Math.abs(x));
const tone = (x) => Math.min(1, Math.abs(x) ** 0.6); // quanto è coperta una casella di peso x
const range = (n) => Array.from({ length: n }, (_, i) => i);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

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
  return text.slice(0, n) + "…";
}

// ---------------------------------------------------------------- pesi

// I pesi arrivano compressi: prima i byte bassi di tutti i codici, poi gli alti.
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const n = bytes.length / 2;
  return Uint16Array.from(range(n), (i) => bytes[i] | (bytes[n + i] << 8));
}

// Il codice 0 è lo zero esatto; il codice c > 0 dice che il peso sta fra (c-1)/levels e c/levels. Dove, lo si ricava
// dalla riga, che deve sommare a uno (`dequantize` in viewer.py fa lo stesso).
function dequantize(codes, start, rows, columns, levels) {
  const weights = new Float64Array(rows * columns);
  for (let r = 0; r < rows; r++) {
    const row = codes.subarray(start + r * columns, start + (r + 1) * columns);
    let sum = 0, count = 0;
    for (const code of row) if (code) { sum += code - 1; count++; }
    const rest = clamp((levels - sum) / count, 0, 0.999);
    row.forEach((code, j) => { weights[r * columns + j] = code ? (code - 1 + rest) / levels : 0; });
  }
  return weights;
}

// La matrice media di alcune teste, (T, S); con le parole unite si sommano le colonne e si fa la media delle righe.
function meanMatrix(map, l, heads, words) {
  const { T, S, h: H, weights } = map;
  const rows = words ? map.queryWords : range(T), columns = words ? map.keyWords : range(S);
  const size = range(1 + rows[T - 1]).map((r) => rows.filter((x) => x === r).length);
  const width = 1 + columns[S - 1];
  const matrix = size.map(() => new Float64Array(width));
  for (const h of heads)
    for (let i = 0; i < T; i++)
      for (let j = 0; j < S; j++)
        matrix[rows[i]][columns[j]] += weights[((l * H + h) * T + i) * S + j] / heads.length / size[rows[i]];
  return matrix;
}

// ---------------------------------------------------------------- la vista

function start(id, css, data) {
  for (const host of document.querySelectorAll(`[data-vista="${id}"]`)) {
    if (host.shadowRoot) continue; // la stessa uscita può comparire due volte
    mount(host, css, data).catch((error) => {
      host.shadowRoot.append("Questo browser non sa mostrare la figura interattiva: aggiornalo.");
      throw error;
    });
  }
}

async function mount(host, css, data) {
  const shadow = host.attachShadow({ mode: "open" });
  const root = html("div", { class: "vista", role: "group", "aria-label": "Visore dell'attenzione" });
  shadow.append(html("style"), root);
  shadow.firstChild.textContent = css;
  followTheme(host);

  const codes = await unpack(data.weights);
  let offset = 0;
  const sentences = data.sentences.map((maps) => maps.map((map) => {
    const rows = map.N * map.h * map.T;
    const weights = dequantize(codes, offset, rows, map.S, data.levels);
    offset += rows * map.S;
    return { ...map, weights };
  }));
  const pair = sentences.length === 2;

  // -------- lo stato: che cosa si guarda

  const first = data.start;
  const state = {
    k: first.k, words: first.words, average: first.average, view: first.view, show: "all",
    chosen: sentences[0].map((map, k) => k === first.k
      ? { l: first.l, heads: new Set(first.heads) }
      : { l: map.N - 1, heads: new Set([0]) }),
    focus: null, // { query, key }: di ciascuno la posizione nei pannelli [prima, seconda, differenza]; -1 = non c'è
    pinned: false,
  };
  const chosen = () => state.chosen[state.k];
  const map = (s = 0) => sentences[s][state.k];
  const role = () => ROLES[map().kind];
  const color = (h) => data.colors[h % data.colors.length];
  const labels = (s, side) => map(s)[side + (state.words ? "WordLabels" : "Labels")];
  const pairs = (side) => data.pairs[state.k][state.words ? "words" : "pieces"][side];

  // I canali sono ciò che ha un colore: le teste accese, oppure la loro media.
  const lit = () => [...chosen().heads].sort((a, b) => a - b);
  function called(heads) {
    if (heads.length === 1) return `testa ${heads[0] + 1}`;
    return heads.length === map().h ? "media di tutte le teste" : `media delle teste ${heads.map((h) => h + 1).join(", ")}`;
  }
  function channels() {
    if (state.average && lit().length > 1) return [{ name: called(lit()), color: "var(--inchiostro)", heads: lit() }];
    return lit().map((h) => ({ name: called([h]), color: color(h), heads: [h] }));
  }

  // Un pannello è ciò che si disegna: le etichette di righe e colonne e, per ogni canale, una matrice.
  function sentencePanel(s, l, drawn) {
    const filled = drawn.map((channel) => ({ ...channel, matrix: meanMatrix(map(s), l, channel.heads, state.words) }));
    const name = pair ? data.names[s] : "";
    return { id: s, name, rows: labels(s, "query"), columns: labels(s, "key"), channels: filled };
  }
  function differencePanel(l, heads) {
    const [a, b] = [0, 1].map((s) => meanMatrix(map(s), l, heads, state.words));
    const rows = pairs("query"), columns = pairs("key");
    const matrix = rows.map(([i, m]) => Float64Array.from(columns, ([j, n]) => b[m][n] - a[i][j]));
    const both = (side) => pairs(side).map(([i, m]) => {
      const [one, two] = [labels(0, side)[i], labels(1, side)[m]];
      return one === two ? one : `${one} | ${two}`;
    });
    return {
      id: 2, signed: true, name: `differenza: ${data.names[1]} meno ${data.names[0]}`,
      rows: both("query"), columns: both("key"), channels: [{ name: called(heads), matrix }],
    };
  }
  function panels() {
    const { l } = chosen();
    const wanted = !pair ? [0] : state.show === "all" ? [0, 1, 2] : [Number(state.show)];
    return wanted.map((id) => id < 2 ? sentencePanel(id, l, channels()) : differencePanel(l, lit()));
  }

  // Dove cade, negli altri pannelli, la posizione n di questo.
  function link(id, side, n) {
    if (n === null) return null;
    if (!pair) return [n];
    const d = id === 2 ? n : pairs(side).findIndex((p) => p[id] === n);
    if (d >= 0) return [...pairs(side)[d], d];
    return range(3).map((p) => (p === id ? n : -1));
  }

  // -------- comandi

  function option(name, value, text) {
    const checked = String(state[name]) === value;
    const input = html("input", { type: "radio", name, value, checked, change: () => set(name, value) });
    return html("label", {}, input, html("span", {}, text));
  }
  const choice = (name, title, options) =>
    html("fieldset", {}, html("legend", {}, title), ...options.map(([value, text]) => option(name, value, text)));
  function check(name, text) {
    const change = (event) => set(name, event.target.checked);
    return html("label", { class: "spunta" }, html("input", { type: "checkbox", checked: state[name], change }), text);
  }

  function set(name, value) {
    state[name] = name === "k" ? Number(value) : value;
    if (name === "k" || name === "words") release();
    render();
  }
  const kinds = sentences[0].map((m, k) => [String(k), ROLES[m.kind].name]);
  const shows = [["all", "affiancate"], ["0", data.names[0]], ["1", data.names[1]], ["2", "differenza"]];
  const controls = html("div", { class: "comandi" },
    kinds.length > 1 && choice("k", "Attenzione", kinds),
    choice("view", "Vista", [["lines", "linee"], ["matrix", "matrice"]]),
    pair && choice("show", "Frasi", shows),
  );
  function lightAll() {
    chosen().heads = new Set(range(map().h));
    render();
  }
  const switches = html("div", { class: "comandi" },
    html("button", { type: "button", class: "tutte", click: lightAll }, "tutte le teste"),
    check("average", "media"),
    data.mergeable && check("words", "parole intere"),
  );

  // -------- il modello in miniatura: una riga per strato, una colonna per testa

  const grid = html("div", { class: "miniature", role: "group" });
  grid.addEventListener("keydown", moveInGrid);
  let drawnMap = "", buttons = []; // buttons[0]: i colori delle teste; buttons[1 + l]: le miniature dello strato l

  function toggle(h) {
    const { heads } = chosen();
    if (!heads.delete(h)) heads.add(h);
    if (!heads.size) heads.add(h); // una almeno resta accesa
    render();
  }
  function open(l, h) {
    Object.assign(chosen(), { l, heads: new Set([h]) });
    render();
  }
  function chip(h) {
    return html("button", {
      type: "button", class: "testa", style: `--colore: ${color(h)}`,
      title: "clic: accende o spegne; doppio clic: lascia accesa questa sola",
      click: () => toggle(h), dblclick: () => open(chosen().l, h),
    }, String(h + 1));
  }
  function thumbnail(l, h) {
    const s = state.show === "1" ? 1 : 0;
    const panel = state.show === "2" ? differencePanel(l, [h]) : sentencePanel(s, l, [{ heads: [h] }]);
    const { matrix } = panel.channels[0], T = panel.rows.length, S = panel.columns.length;
    const canvas = html("canvas", { width: S, height: T, "aria-hidden": "true" });
    const pen = canvas.getContext("2d");
    for (let i = 0; i < T; i++)
      for (let j = 0; j < S; j++) {
        pen.globalAlpha = tone(matrix[i][j]);
        pen.fillStyle = panel.signed ? (matrix[i][j] < 0 ? LESS : MORE) : color(h);
        pen.fillRect(j, i, 1, 1);
      }
    const add = (event) => event.shiftKey && l === chosen().l; // con Maiusc si aggiunge
    return html("button", {
      type: "button", class: "miniatura", style: `--colore: ${color(h)}`,
      "aria-label": `strato ${l + 1}, testa ${h + 1}`,
      click: (event) => (add(event) ? toggle(h) : open(l, h)),
    }, canvas);
  }
  function drawGrid() {
    const { N, h: H } = map(), key = [state.k, state.words, state.show].join();
    if (key !== drawnMap) {
      drawnMap = key;
      buttons = [range(H).map(chip), ...range(N).map((l) => range(H).map((h) => thumbnail(l, h)))];
      grid.style.setProperty("--teste", H);
      grid.setAttribute("aria-label", `Il modello in miniatura, ${role().name}: ${N} strati per ${H} teste`);
      const name = (r) => html("span", { class: "strato" }, r ? String(r) : "testa");
      grid.replaceChildren(...buttons.flatMap((row, r) => [name(r), ...row]));
    }
    const { l, heads } = chosen();
    buttons.forEach((row, r) => row.forEach((button, h) => {
      const on = heads.has(h) && (r === 0 || r - 1 === l);
      button.setAttribute("aria-pressed", on);
      if (r === 0) button.setAttribute("aria-label", `testa ${h + 1}, ${on ? "accesa" : "spenta"}`);
      button.classList.toggle("dello-strato", r - 1 === l);
      button.tabIndex = r - 1 === l && h === lit()[0] ? 0 : -1; // un solo passo di tabulazione; dentro, le frecce
    }));
  }
  function moveInGrid(event) {
    const r = buttons.findIndex((row) => row.includes(event.target));
    if (r < 0) return;
    const h = buttons[r].indexOf(event.target);
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const isolate = r === 0 && event.shiftKey && event.key === "Enter";
    if (!move && !isolate) return;
    event.preventDefault();
    if (isolate) return open(chosen().l, h);
    const [dr, dh] = move;
    buttons[clamp(r + dr, 0, buttons.length - 1)][clamp(h + dh, 0, buttons[0].length - 1)].focus();
  }

  // -------- disegni

  const stage = html("div", { class: "scena" });
  const readout = html("div", { class: "riquadro", role: "status", "aria-live": "polite", tabindex: "0" });
  let drawings = []; // per pannello: l'SVG e la funzione che ne ridisegna la parte in evidenza

  // il numero come si legge: con il segno nella differenza, un trattino dove il decoder non può guardare
  const show = (panel, x) => (panel.signed ? signed(x) : x === 0 && map().kind === "decoder" ? "–" : number(x));
  const paint = (panel, c, x) => (panel.signed ? (x < 0 ? LESS : MORE) : panel.channels[c].color);

  // Due colonne di pezzi e una linea per ogni peso; in evidenza, le linee di un pezzo solo, con i numeri.
  function drawLines(panel, width) {
    const { rows, columns, channels: drawn } = panel, n = drawn.length, step = 22, top = 6;
    const room = width * 0.3, digits = n === 1 ? 38 : 0, strip = n === 1 ? 9 : clamp(45 / n, 3, 8);
    const left = Math.min(widest(rows), room) + digits + 6; // dove finiscono le etichette di sinistra
    const right = width - Math.min(widest(columns), room) - digits - 6;
    const from = left + n * strip + 4, to = right - n * strip - 4, middle = (from + to) / 2;
    const y = (i) => top + step * (i + 0.5);
    function curve(c, i, j, x, opacity) {
      const beside = (c - (n - 1) / 2) * Math.min(3, 12 / n); // le linee di due teste non si coprono
      const [start, end] = [y(i) + beside, y(j) + beside];
      return svg("path", {
        d: `M${from} ${start}C${middle} ${start} ${middle} ${end} ${to} ${end}`, stroke: paint(panel, c, x),
        "stroke-opacity": opacity.toFixed(3), "stroke-width": (1 + 3 * Math.abs(x)).toFixed(2),
        "stroke-dasharray": panel.signed && x < 0 ? "4 3" : null,
      });
    }
    const all = svg("g", { fill: "none" }), focused = svg("g", { fill: "none" }), marks = svg("g");
    drawn.forEach(({ matrix }, c) => matrix.forEach((row, i) => row.forEach((x, j) => {
      if (Math.abs(x) >= THIN) all.append(curve(c, i, j, x, panel.signed ? tone(x) : x));
    })));
    function label(side, text, i) {
      const [x, start, span, anchor] = side === "query" ? [left, 0, left + 2, "end"] : [right, right - 2, width - right + 2, "start"];
      return svg("g", { class: "pezzo", [`data-${side}`]: i }, svg("title", {}, text),
        svg("rect", { x: start, y: y(i) - step / 2, width: span, height: step, rx: 4 }),
        svg("text", { x, y: y(i) + 4.5, "text-anchor": anchor }, shorten(text, room)));
    }
    const picture = svg("svg", { width, height: top * 2 + step * Math.max(rows.length, columns.length) },
      all, focused, marks, ...rows.map((t, i) => label("query", t, i)), ...columns.map((t, j) => label("key", t, j)));

    // accanto a ogni pezzo dell'altra colonna: una striscia per canale e, se il canale è uno, il numero
    function mark(side, i, c, x) {
      const [near, far, anchor] = side === "query"
        ? [left + 3 + c * strip, 2, "start"] : [right - 3 - (n - c) * strip, width - 2, "end"];
      const look = { class: "striscia", fill: paint(panel, c, x), "fill-opacity": tone(x).toFixed(3) };
      marks.append(svg("rect", { x: near, y: y(i) - 8, width: strip - 1, height: 16, ...look }));
      if (n === 1) marks.append(svg("text", { class: "numero", x: far, y: y(i) + 4.5, "text-anchor": anchor }, show(panel, x)));
    }
    return [picture, (i, j) => {
      focused.replaceChildren();
      marks.replaceChildren();
      all.classList.toggle("sfondo", i !== null || j !== null);
      drawn.forEach(({ matrix }, c) => matrix.forEach((row, m) => row.forEach((x, q) => {
        if ((i !== null && m !== i) || (j !== null && q !== j) || (i === null && j === null)) return;
        focused.append(curve(c, m, q, x, tone(x)));
        if (i === null) mark("query", m, c, x);
        else mark("key", q, c, x);
      })));
    }];
  }

  // Righe e colonne; una casella ha tante strisce quanti sono i canali.
  function drawMatrix(panel, width) {
    const { rows, columns, channels: drawn } = panel, n = drawn.length, long = 92, [T, S] = [rows.length, columns.length];
    const left = Math.min(widest(rows), width * 0.28, 110) + 8, reach = Math.min(widest(columns), long);
    const slanted = (width - left - reach * 0.62) / S >= 13; // nomi obliqui se ci stanno, se no verticali
    const cell = clamp((width - left - (slanted ? reach * 0.62 : 4)) / S, 9, 30);
    const top = reach * (slanted ? 0.8 : 1) + 14, right = left + cell * S, bottom = top + cell * T;
    const [x, y] = [(j) => left + cell * j, (i) => top + cell * i];
    const size = cell < 12 ? "small" : null;
    const centered = (name, i, j, text) =>
      svg("text", { class: name, x: x(j + 0.5), y: y(i + 0.5) + 4, "text-anchor": "middle" }, text);

    const cells = svg("g"), over = svg("g", { fill: "none", class: "mirino" });
    drawn.forEach(({ matrix }, c) => matrix.forEach((row, i) => row.forEach((w, j) => {
      if (Math.abs(w) < 0.002) return;
      const look = { fill: paint(panel, c, w), "fill-opacity": tone(w).toFixed(3) };
      cells.append(svg("rect", { x: x(j + c / n), y: y(i), width: cell / n, height: cell, ...look }));
      if (panel.signed && Math.abs(w) >= 0.05) cells.append(centered("segno", i, j, w < 0 ? "−" : "+"));
    })));
    const down = range(S + 1).map((j) => `M${x(j)} ${top}V${bottom}`), across = range(T + 1).map((i) => `M${left} ${y(i)}H${right}`);
    const rowLabel = (text, i) => svg("g", { class: "pezzo", "data-query": i }, svg("title", {}, text),
      svg("rect", { x: 0, y: y(i), width: left - 3, height: cell, rx: 4 }),
      svg("text", { class: size, x: left - 7, y: y(i + 0.5) + 4.5, "text-anchor": "end" }, shorten(text, left - 8)));
    const turn = (j) => `translate(${x(j + 0.5)} ${top - 7}) rotate(${slanted ? -52 : -90})`;
    const columnLabel = (text, j) => svg("g", { class: "pezzo", "data-key": j, transform: turn(j) }, svg("title", {}, text),
      svg("rect", { x: -2, y: -cell / 2, width: reach + 6, height: cell, rx: 4 }),
      svg("text", { class: size, x: 2, y: slanted ? 2 : 4.5 }, shorten(text, long)));
    const picture = svg("svg", { width: Math.max(width, right + 2), height: bottom + 4 },
      svg("path", { class: "reticolo", d: [...down, ...across].join("") }), cells, over,
      svg("rect", { class: "campo", x: left, y: top, width: right - left, height: bottom - top }),
      ...rows.map(rowLabel), ...columns.map(columnLabel));
    picture.cellAt = (event) => { // quale casella sta sotto il puntatore
      const box = picture.getBoundingClientRect(), scale = picture.width.baseVal.value / box.width;
      const at = (client, edge, origin, count) => clamp(Math.floor(((client - edge) * scale - origin) / cell), 0, count - 1);
      return [at(event.clientY, box.top, top, T), at(event.clientX, box.left, left, S)];
    };
    return [picture, (i, j) => {
      over.replaceChildren();
      if (i !== null) over.append(svg("rect", { x: left, y: y(i), width: right - left, height: cell }));
      if (j !== null) over.append(svg("rect", { x: x(j), y: top, width: cell, height: bottom - top }));
      if (n > 1 || cell < 28 || (i === null && j === null)) return; // se c'è posto, i numeri stanno nelle caselle
      drawn[0].matrix.forEach((row, m) => row.forEach((w, q) => {
        if ((i === null || m === i) && (j === null || q === j)) over.append(centered("cifra", m, q, show(panel, w)));
      }));
    }];
  }

  function drawPanel(panel, width) {
    const matrix = state.view === "matrix";
    const [picture, highlight] = matrix ? drawMatrix(panel, width) : drawLines(panel, width);
    const what = [panel.name, role().name, `strato ${chosen().l + 1}`, ...panel.channels.map((c) => c.name)];
    const sizes = `${panel.rows.length} pezzi guardano, ${panel.columns.length} sono guardati`;
    build(picture, {
      viewBox: `0 0 ${picture.getAttribute("width")} ${picture.getAttribute("height")}`, tabindex: 0, role: "application",
      "aria-roledescription": "mappa di attenzione",
      "aria-label": `${what.filter(Boolean).join(", ")}: ${sizes}. Frecce per spostarsi, Esc per lasciare.`,
      pointerover: (event) => state.pinned || point(panel, event),
      pointermove: (event) => state.pinned || (event.target.classList.contains("campo") && point(panel, event)),
      pointerleave: () => state.pinned || focusOn(panel, null, null),
      click: (event) => pin(panel, event),
      keydown: (event) => moveInPicture(panel, event),
    }, []);
    drawings.push({ panel, highlight, picture });
    const axes = [(matrix ? "righe: " : "") + role().query, "→", (matrix ? "colonne: " : "") + role().key];
    return html("figure", { class: panel.signed ? "differenza" : null, style: `max-width: ${width}px` },
      panel.name && html("figcaption", {}, panel.name),
      html("div", { class: "assi" }, ...axes.map((text) => html("span", {}, text))),
      html("div", { class: "disegno" }, picture),
      panel.signed && note(panel));
  }

  // Che cosa resta fuori dalla differenza, e come si leggono i segni.
  function note(panel) {
    const lonely = (side, s) => labels(s, side).filter((_, n) => !pairs(side).some((p) => p[s] === n));
    const out = new Set(["query", "key"].flatMap((side) => [...lonely(side, 0), ...lonely(side, 1)]));
    const named = [...out].map((text) => `«${text}»`).join(" ");
    return html("p", { class: "nota" },
      `${panel.channels[0].name}. + (linea piena): di più in «${data.names[1]}»; − (tratteggiata): di meno. `,
      out.size ? `Senza corrispondente, quindi fuori: ${named}.` : "Tutti i pezzi hanno un corrispondente.");
  }

  // -------- indicare un pezzo: col puntatore, col dito, con la tastiera

  function target(event) {
    if (event.target.classList.contains("campo")) return event.currentTarget.cellAt(event);
    const piece = event.target.closest(".pezzo");
    return piece && ["query", "key"].map((side) => (side in piece.dataset ? Number(piece.dataset[side]) : null));
  }
  function point(panel, event) {
    const at = target(event);
    if (at) focusOn(panel, ...at);
  }
  function pin(panel, event) {
    const at = target(event), now = place(panel);
    const same = at && state.pinned && at[0] === now[0] && at[1] === now[1];
    state.pinned = Boolean(at) && !same;
    focusOn(panel, ...(state.pinned ? at : [null, null]));
  }
  function release() {
    state.focus = null;
    state.pinned = false;
  }
  function focusOn(panel, i, j) {
    state.focus = i === null && j === null ? null : { query: link(panel.id, "query", i), key: link(panel.id, "key", j) };
    highlightAll();
  }
  // La riga e la colonna scelte in un pannello; null = nessuna.
  function place(panel) {
    return ["query", "key"].map((side) => {
      const n = state.focus?.[side]?.[panel.id] ?? -1;
      return n < 0 ? null : n;
    });
  }
  function moveInPicture(panel, event) {
    const { key } = event, [i, j] = place(panel), [T, S] = [panel.rows.length, panel.columns.length];
    if (key === "Escape") { release(); return highlightAll(); }
    const at = state.view === "matrix" ? stepInMatrix(key, i, j, T, S) : stepInLines(key, i, j, T, S);
    if (!at) return;
    event.preventDefault();
    state.pinned = true; // con la tastiera il pezzo resta finché non se ne sceglie un altro
    focusOn(panel, ...at);
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
    const [di, dj] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity] }[key] ?? [];
    if (di === undefined) return;
    const go = (n, step, size, other) => { // null = l'intestazione: vi si può stare se l'altra coordinata c'è
      const next = clamp((n ?? -1) + step, -1, size - 1);
      return next >= 0 ? next : other === null ? 0 : null;
    };
    if (i === null && j === null) return [0, null];
    return di ? [go(i, di, T, j), j] : [i, go(j, dj, S, i)];
  }

  // -------- il riquadro: in parole, con i numeri

  const entry = (text, value) => html("span", { class: "voce" }, text, html("b", {}, value));
  function ranked(values, texts, plain) {
    const order = range(values.length).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
    const top = order.slice(0, TOP).filter((n, rank) => rank === 0 || Math.abs(values[n]) >= 0.005);
    const others = order.slice(top.length), rest = others.reduce((sum, n) => sum + values[n], 0);
    const items = top.flatMap((n) => [entry(`${texts[n]} `, plain(values[n])), " "]);
    return others.length ? [...items, entry(`altri ${others.length}: `, plain(rest))] : items;
  }
  function sentence(panel, channel, i, j) {
    const { rows, columns } = panel, { matrix } = channel, plain = panel.signed ? signed : number, { looks } = role();
    if (j === null) return [`«${rows[i]}» ${looks}: `, ...ranked([...matrix[i]], columns, plain)];
    if (i !== null) return [`«${rows[i]}» ${looks} «${columns[j]}»: `, html("b", {}, show(panel, matrix[i][j]))];
    const column = matrix.map((row) => row[j]), total = column.reduce((a, b) => a + b, 0);
    return [`«${columns[j]}» è guardato da: `, ...ranked(column, rows, plain), ` (in tutto ${plain(total)})`];
  }
  function describe(panel) {
    const [i, j] = place(panel), name = html("i", {}, `${panel.name} · `);
    if (i === null && j === null) return [html("p", {}, name, "questo pezzo non ha un corrispondente.")];
    const both = map().kind === "encoder" && !pair && (i === null || j === null); // lo stesso pezzo guarda ed è guardato
    const views = both ? [[i ?? j, null], [null, i ?? j]] : [[i, j]];
    return panel.channels.flatMap((channel, c) => views.map(([a, b], v) => html("p", {},
      pair && c + v === 0 && name,
      v === 0 && html("span", { class: "canale", style: `--colore: ${channel.color ?? "transparent"}` }, `${channel.name} · `),
      ...sentence(panel, channel, a, b))));
  }
  function highlightAll() {
    for (const { panel, highlight, picture } of drawings) {
      const [i, j] = place(panel);
      highlight(i, j);
      for (const piece of picture.querySelectorAll(".pezzo"))
        piece.classList.toggle("scelto", piece.dataset.query === String(i) || piece.dataset.key === String(j));
    }
    readout.classList.toggle("vuoto", !state.focus);
    const hint = "Passa su un pezzo, toccalo o usa le frecce: qui si legge che cosa guarda e chi lo guarda. Un clic lo fissa.";
    readout.replaceChildren(...(state.focus ? drawings.flatMap(({ panel }) => describe(panel)) : [html("p", {}, hint)]));
  }

  // -------- legenda, tabella, aiuto

  const legend = html("p", { class: "nota legenda" });
  function drawLegend() {
    const notch = (x) => [html("span", { class: "tacca", style: `--velo: ${tone(x)}` }), html("span", {}, number(x))];
    const scale = ["peso", ...[0.05, 0.1, 0.25, 0.5, 1].flatMap(notch), "ogni riga somma a 1"];
    const words = `Più una linea è scura e spessa, più il peso è grande; sotto ${number(THIN)} non è disegnata.`;
    legend.replaceChildren(...(state.view === "matrix" ? scale : [words, " I pesi di chi guarda sommano a 1."]));
  }
  const table = html("details", { class: "tabella", toggle: drawTable }, html("summary", {}, "Tabella dei numeri"));
  function drawTable() {
    table.querySelector("div")?.remove();
    if (!table.open) return;
    const roles = ` (righe: ${role().query}; colonne: ${role().key})`;
    const cells = (panel, row) => [...row].map((x) => html("td", {}, show(panel, x)));
    const one = (panel, channel) => html("table", {},
      html("caption", {}, [panel.name, channel.name].filter(Boolean).join(" · ") + roles),
      html("tr", {}, html("td"), ...panel.columns.map((text) => html("th", { scope: "col" }, text))),
      ...panel.rows.map((text, i) => html("tr", {}, html("th", { scope: "row" }, text), ...cells(panel, channel.matrix[i]))));
    const all = drawings.flatMap(({ panel }) => panel.channels.map((channel) => one(panel, channel)));
    table.append(html("div", { class: "disegno" }, ...all));
  }
  const tips = [
    "Le miniature sono tutto il modello: una riga per strato, una colonna per testa. Un clic apre una testa; con Maiusc, la " +
      "si aggiunge a quelle accese.",
    "I numeri colorati accendono e spengono le teste; un doppio clic (o Maiusc+Invio) ne lascia una sola.",
    "Passa su un pezzo, o toccalo, per vedere che cosa guarda e chi lo guarda. Un clic lo fissa, un altro lo lascia.",
    "Da tastiera: Tab passa da una parte all'altra; nelle miniature e nel disegno si va con le frecce, Invio sceglie, Esc lascia.",
    data.mergeable && "«Parole intere» unisce i pezzi di una parola: i pesi si sommano sulle colonne e si mediano sulle righe, " +
      "che così sommano ancora a 1. Il segno · apre un pezzo che continua la parola.",
    `I pesi di questa vista hanno un errore inferiore a ${String(1 / data.levels).replace(".", ",")}.`,
  ];
  const list = html("ul", {}, ...tips.filter(Boolean).map((text) => html("li", {}, text)));
  const help = html("details", { class: "aiuto" }, html("summary", {}, "Come si usa"), list);

  // -------- mettere insieme

  const title = html("p", { class: "titolo" });
  let width = 0;
  function render() {
    if (!width) return;
    const active = drawings.findIndex(({ picture }) => picture === shadow.activeElement);
    drawGrid();
    switches.querySelector(".tutte").setAttribute("aria-pressed", chosen().heads.size === map().h);
    const name = (c) => html("span", { class: "canale", style: `--colore: ${c.color}` }, c.name);
    title.replaceChildren(`${role().name} · strato ${chosen().l + 1} · `, ...channels().flatMap((c) => [name(c), " "]));

    const shown = panels(), gap = 16, beside = shown.length === 1 && width >= 640; // il disegno accanto al modello
    const perRow = shown.length === 1 ? 1 : width >= 1000 ? 3 : width >= 560 ? 2 : 1;
    const room = Math.min(720, beside ? width - 266 : (width - gap * (perRow - 1)) / perRow);
    const wide = (panel) => Math.floor(panel.signed && perRow === 2 ? Math.min(width, 560) : room);
    root.dataset.forma = beside ? "largo" : ["", "stretto", "coppia", "coppia tre"][perRow];
    stage.style.setProperty("--colonne", perRow);
    drawings = [];
    stage.replaceChildren(...shown.map((panel) => drawPanel(panel, wide(panel))));
    drawings[active]?.picture.focus({ preventScroll: true });
    drawLegend();
    drawTable();
    highlightAll();
  }
  const model = html("div", { class: "modello" }, grid, switches), scene = html("div", { class: "palco" }, title, stage, legend);
  root.append(controls, model, scene, readout, html("div", { class: "piede" }, table, help));
  if (first.focus !== null) {
    state.focus = { query: link(0, "query", first.focus), key: null };
    state.pinned = true;
  }
  function fit() {
    const now = Math.floor(host.clientWidth) - 10;
    if (now > 0 && now !== width) { width = now; render(); }
  }
  fit();
  new ResizeObserver(fit).observe(host);
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
