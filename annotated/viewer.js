// Il visore dell'attenzione: nessuna libreria, nessuna richiesta di rete. `annotated/viewer.py` mette nella pagina
// questo file, lo stile e i dati, e chiama `start`.
//
// Lettere: k attenzione (encoder, decoder, cross), s frase, l strato, h testa, i riga (query), j colonna (chiave).
// Tutto si conta da 0; soltanto le etichette contano da 1.

const ROLES = {
  encoder: { name: "encoder", looks: "guarda", query: "chi guarda (partenza)", key: "chi è guardato (partenza)" },
  decoder: { name: "decoder", looks: "mentre si scrive guarda", query: "chi guarda (pezzo da scrivere)", key: "chi è guardato (già letto)" },
  cross: { name: "incrociata", looks: "mentre si scrive guarda", query: "chi guarda (pezzo da scrivere)", key: "chi è guardato (partenza)" },
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
  for (const host of document.querySelectorAll(`[data-vista="${id}"]`))
    if (!host.shadowRoot) mount(host, css, data); // la stessa uscita può comparire due volte
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
  function channels() {
    const heads = [...chosen().heads].sort((a, b) => a - b);
    if (!state.average || heads.length === 1) return heads.map((h) => ({ name: `testa ${h + 1}`, color: color(h), heads: [h] }));
    return [{ name: heads.length === map().h ? "media di tutte le teste" : `media delle teste ${listed(heads)}`, color: "var(--inchiostro)", heads }];
  }
  const listed = (heads) => heads.map((h) => h + 1).join(", ");

  // Un pannello è ciò che si disegna: le etichette di righe e colonne e, per ogni canale, una matrice.
  function sentencePanel(s, l, drawn) {
    const matrices = drawn.map((channel) => ({ ...channel, matrix: meanMatrix(map(s), l, channel.heads, state.words) }));
    return { id: s, name: pair ? data.names[s] : "", rows: labels(s, "query"), columns: labels(s, "key"), channels: matrices };
  }
  function differencePanel(l, heads) {
    const [a, b] = [0, 1].map((s) => meanMatrix(map(s), l, heads, state.words));
    const rows = pairs("query"), columns = pairs("key");
    const matrix = rows.map(([i, m]) => Float64Array.from(columns, ([j, n]) => b[m][n] - a[i][j]));
    const both = (side) => pairs(side).map(([i, m]) => {
      const [one, two] = [labels(0, side)[i], labels(1, side)[m]];
      return one === two ? one : `${one} | ${two}`;
    });
    const name = heads.length > 1 ? `media delle teste ${listed(heads)}` : `testa ${heads[0] + 1}`;
    return {
      id: 2, signed: true, name: `differenza: ${data.names[1]} meno ${data.names[0]}`,
      rows: both("query"), columns: both("key"), channels: [{ name, matrix }],
    };
  }
  function panels() {
    const { l, heads } = chosen(), drawn = channels();
    const wanted = !pair ? [0] : state.show === "all" ? [0, 1, 2] : [Number(state.show)];
    return wanted.map((id) => id < 2 ? sentencePanel(id, l, drawn) : differencePanel(l, [...heads].sort((a, b) => a - b)));
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

  const option = (group, value, text) => html("label", {},
    html("input", { type: "radio", name: group, value, checked: String(state[group]) === value, change: () => set(group, value) }),
    html("span", {}, text));
  const choice = (group, title, options) =>
    html("fieldset", {}, html("legend", {}, title), ...options.map(([value, text]) => option(group, value, text)));
  const check = (name, text) => html("label", { class: "spunta" },
    html("input", { type: "checkbox", checked: state[name], change: (event) => set(name, event.target.checked) }), text);

  function set(name, value) {
    state[name] = name === "k" ? Number(value) : value;
    if (name === "k" || name === "words") release();
    render();
  }
  const controls = html("div", { class: "comandi" },
    sentences[0].length > 1 && choice("k", "Attenzione", sentences[0].map((m, k) => [String(k), ROLES[m.kind].name])),
    choice("view", "Vista", [["lines", "linee"], ["matrix", "matrice"]]),
    pair && choice("show", "Frasi", [["all", "affiancate"], ["0", data.names[0]], ["1", data.names[1]], ["2", "differenza"]]),
  );
  const switches = html("div", { class: "comandi" },
    html("button", { type: "button", class: "tutte", click: () => { chosen().heads = new Set(range(map().h)); render(); } }, "tutte le teste"),
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
      type: "button", class: "testa", style: `--colore: ${color(h)}`, title: "clic: accende o spegne; doppio clic: sola",
      click: () => toggle(h), dblclick: () => open(chosen().l, h),
    }, String(h + 1));
  }
  function thumbnail(l, h) {
    const panel = state.show === "2" ? differencePanel(l, [h]) : sentencePanel(state.show === "1" ? 1 : 0, l, [{ heads: [h] }]);
    const { matrix } = panel.channels[0], [T, S] = [panel.rows.length, panel.columns.length];
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
      type: "button", class: "miniatura", style: `--colore: ${color(h)}`, "aria-label": `strato ${l + 1}, testa ${h + 1}`,
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
      grid.replaceChildren(...buttons.flatMap((row, r) => [html("span", { class: "strato" }, r ? String(r) : "testa"), ...row]));
    }
    const { l, heads } = chosen();
    buttons.forEach((row, r) => row.forEach((button, h) => {
      const on = heads.has(h) && (r === 0 || r - 1 === l);
      button.setAttribute("aria-pressed", on);
      if (r === 0) button.setAttribute("aria-label", `testa ${h + 1}, ${on ? "accesa" : "spenta"}`);
      button.classList.toggle("dello-strato", r - 1 === l);
      button.tabIndex = r - 1 === l && h === Math.min(...heads) ? 0 : -1; // un solo passo di tabulazione; dentro, le frecce
    }));
  }
  function moveInGrid(event) {
    const r = buttons.findIndex((row) => row.includes(event.target));
    if (r < 0) return;
    const h = buttons[r].indexOf(event.target);
    if (r === 0 && event.shiftKey && event.key === "Enter") { event.preventDefault(); return open(chosen().l, h); }
    const [dr, dh] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!dr && !dh) return;
    event.preventDefault();
    buttons[clamp(r + dr, 0, buttons.length - 1)][clamp(h + dh, 0, buttons[0].length - 1)].focus();
  }

  // -------- disegni

  const stage = html("div", { class: "scena" });
  const readout = html("div", { class: "riquadro", role: "status", "aria-live": "polite" });
  let drawings = []; // per pannello: l'SVG e la funzione che ne ridisegna la parte in evidenza

  // il numero come si legge: con il segno nella differenza, un trattino dove il decoder non può guardare
  const show = (panel, x) => (panel.signed ? signed(x) : x === 0 && map().kind === "decoder" ? "–" : number(x));
  const paint = (panel, c, x) => (panel.signed ? (x < 0 ? LESS : MORE) : panel.channels[c].color);

  // Due colonne di pezzi e una linea per ogni peso; in evidenza, le linee di un pezzo solo, con i numeri.
  function drawLines(panel, width) {
    const { rows, columns, channels: drawn } = panel, n = drawn.length, step = 22, top = 6;
    const room = width * 0.3, digits = n === 1 ? 38 : 0, strip = n === 1 ? 9 : clamp(45 / n, 3, 8);
    const left = Math.min(widest(rows), room) + digits + 6, right = width - Math.min(widest(columns), room) - digits - 6;
    const [from, to] = [left + n * strip + 4, right - n * strip - 4];
    const y = (i) => top + step * (i + 0.5);
    const beside = (c) => (c - (n - 1) / 2) * Math.min(3, 12 / n); // le linee di due teste non si coprono
    const curve = (c, i, j, x, opacity) => svg("path", {
      d: `M${from} ${y(i) + beside(c)}C${(from + to) / 2} ${y(i) + beside(c)} ${(from + to) / 2} ${y(j) + beside(c)} ${to} ${y(j) + beside(c)}`,
      stroke: paint(panel, c, x), "stroke-opacity": opacity.toFixed(3), "stroke-width": (1 + 3 * Math.abs(x)).toFixed(2),
      "stroke-dasharray": panel.signed && x < 0 ? "4 3" : null,
    });
    const all = svg("g", { fill: "none" }), focused = svg("g", { fill: "none" }), marks = svg("g");
    drawn.forEach(({ matrix }, c) => matrix.forEach((row, i) => row.forEach((x, j) => {
      if (Math.abs(x) >= THIN) all.append(curve(c, i, j, x, panel.signed ? tone(x) : x));
    })));
    const label = (side, text, i) => svg("g", { class: "pezzo", [`data-${side}`]: i },
      svg("rect", { x: side === "query" ? 0 : right - 2, y: y(i) - step / 2, width: side === "query" ? left + 2 : width - right + 2, height: step, rx: 4 }),
      svg("text", { x: side === "query" ? left : right, y: y(i) + 4.5, "text-anchor": side === "query" ? "end" : "start" }, shorten(text, room), svg("title", {}, text)));
    const picture = svg("svg", { width, height: top * 2 + step * Math.max(rows.length, columns.length) },
      all, focused, marks, ...rows.map((t, i) => label("query", t, i)), ...columns.map((t, j) => label("key", t, j)));

    // accanto a ogni pezzo dell'altra colonna: una striscia per canale e, se il canale è uno, il numero
    function mark(side, i, c, x) {
      const near = side === "query" ? left + 3 + c * strip : right - 3 - (n - c) * strip;
      marks.append(svg("rect", { x: near, y: y(i) - 8, width: strip - 1, height: 16, class: "striscia", fill: paint(panel, c, x), "fill-opacity": tone(x).toFixed(3) }));
      if (n === 1) marks.append(svg("text", { class: "numero", x: side === "query" ? 2 : width - 2, y: y(i) + 4.5, "text-anchor": side === "query" ? "start" : "end" }, show(panel, x)));
    }
    return [picture, (i, j) => {
      focused.replaceChildren();
      marks.replaceChildren();
      all.classList.toggle("sfondo", i !== null || j !== null);
      drawn.forEach(({ matrix }, c) => matrix.forEach((row, m) => row.forEach((x, q) => {
        if ((i !== null && m !== i) || (j !== null && q !== j) || (i === null && j === null)) return;
        focused.append(curve(c, m, q, x, tone(x)));
        if (j === null) mark("key", q, c, x);
        else if (i === null) mark("query", m, c, x);
        else mark("key", q, c, x);
      })));
    }];
  }

  // Righe e colonne; una casella ha tante strisce quanti sono i canali.
  function drawMatrix(panel, width) {
    const { rows, columns, channels: drawn } = panel, n = drawn.length, long = 92;
    const left = Math.min(widest(rows), width * 0.28, 110) + 8, reach = Math.min(widest(columns), long);
    const slanted = (width - left - reach * 0.62) / columns.length >= 13; // nomi obliqui se ci stanno, se no verticali
    const cell = clamp((width - left - (slanted ? reach * 0.62 : 4)) / columns.length, 9, 30), angle = slanted ? -52 : -90;
    const top = reach * (slanted ? 0.8 : 1) + 14, [right, bottom] = [left + cell * columns.length, top + cell * rows.length];
    const size = cell < 12 ? "small" : null;
    const cells = svg("g"), over = svg("g", { fill: "none", class: "mirino" });
    drawn.forEach(({ matrix }, c) => matrix.forEach((row, i) => row.forEach((x, j) => {
      if (Math.abs(x) < 0.002) return;
      cells.append(svg("rect", { x: left + cell * (j + c / n), y: top + cell * i, width: cell / n, height: cell, fill: paint(panel, c, x), "fill-opacity": tone(x).toFixed(3) }));
      if (panel.signed && Math.abs(x) >= 0.05) cells.append(svg("text", { class: "segno", x: left + cell * (j + 0.5), y: top + cell * (i + 0.5) + 4, "text-anchor": "middle" }, x < 0 ? "−" : "+"));
    })));
    const lines = [...range(columns.length + 1).map((j) => `M${left + cell * j} ${top}V${bottom}`), ...range(rows.length + 1).map((i) => `M${left} ${top + cell * i}H${right}`)];
    const picture = svg("svg", { width: Math.max(width, right + 2), height: bottom + 4 },
      svg("path", { class: "reticolo", d: lines.join("") }), cells, over,
      svg("rect", { class: "campo", x: left, y: top, width: right - left, height: bottom - top }),
      ...rows.map((t, i) => svg("g", { class: "pezzo", "data-query": i },
        svg("rect", { x: 0, y: top + cell * i, width: left - 3, height: cell, rx: 4 }),
        svg("text", { class: size, x: left - 7, y: top + cell * (i + 0.5) + 4.5, "text-anchor": "end" }, shorten(t, left - 8), svg("title", {}, t)))),
      ...columns.map((t, j) => svg("g", { class: "pezzo", "data-key": j, transform: `translate(${left + cell * (j + 0.5)} ${top - 7}) rotate(${angle})` },
        svg("rect", { x: -2, y: -cell / 2, width: reach + 6, height: cell, rx: 4 }),
        svg("text", { class: size, x: 2, y: slanted ? 2 : 4.5 }, shorten(t, long), svg("title", {}, t)))));
    picture.cellAt = (event) => { // quale casella sta sotto il puntatore
      const box = picture.getBoundingClientRect(), scale = picture.width.baseVal.value / box.width;
      const at = (client, edge, origin, count) => clamp(Math.floor(((client - edge) * scale - origin) / cell), 0, count - 1);
      return [at(event.clientY, box.top, top, rows.length), at(event.clientX, box.left, left, columns.length)];
    };
    const frame = (x, y, width, height) => svg("rect", { x, y, width, height });
    const digits = (i, j, x) => svg("text", { class: "cifra", x: left + cell * (j + 0.5), y: top + cell * (i + 0.5) + 4, "text-anchor": "middle" }, show(panel, x));
    return [picture, (i, j) => {
      over.replaceChildren();
      if (i !== null) over.append(frame(left, top + cell * i, right - left, cell));
      if (j !== null) over.append(frame(left + cell * j, top, cell, bottom - top));
      if (n > 1 || cell < 28 || (i === null && j === null)) return; // se c'è posto, i numeri stanno nelle caselle
      drawn[0].matrix.forEach((row, m) => row.forEach((x, q) => {
        if ((i === null || m === i) && (j === null || q === j)) over.append(digits(m, q, x));
      }));
    }];
  }

  function drawPanel(panel, width) {
    const [picture, highlight] = state.view === "lines" ? drawLines(panel, width) : drawMatrix(panel, width);
    const names = panel.channels.map((c) => c.name).join(", ");
    build(picture, {
      viewBox: `0 0 ${picture.getAttribute("width")} ${picture.getAttribute("height")}`, tabindex: 0, role: "application",
      "aria-roledescription": "mappa di attenzione",
      "aria-label": `${panel.name ? panel.name + ", " : ""}${role().name}, strato ${chosen().l + 1}, ${names}: ${panel.rows.length} pezzi guardano, ${panel.columns.length} sono guardati. Frecce per spostarsi, Invio per fissare, Esc per lasciare.`,
      pointerover: (event) => state.pinned || point(panel, event),
      pointermove: (event) => state.pinned || (event.target.classList.contains("campo") && point(panel, event)),
      pointerleave: () => state.pinned || focusOn(panel, null, null),
      click: (event) => pin(panel, event),
      keydown: (event) => moveInPicture(panel, event),
    }, []);
    drawings.push({ panel, highlight, picture });
    return html("figure", { class: panel.signed ? "differenza" : null, style: `max-width: ${width}px` },
      panel.name && html("figcaption", {}, panel.name),
      html("div", { class: "assi" }, html("span", {}, (state.view === "lines" ? "" : "righe: ") + role().query), html("span", {}, "→"), html("span", {}, (state.view === "lines" ? "" : "colonne: ") + role().key)),
      html("div", { class: "disegno" }, picture),
      panel.signed && note(panel));
  }

  // Che cosa resta fuori dalla differenza, e come si leggono i segni.
  function note(panel) {
    const out = ["query", "key"].flatMap((side) => [0, 1].flatMap((s) =>
      labels(s, side).filter((_, n) => !pairs(side).some((p) => p[s] === n))));
    return html("p", { class: "nota" },
      `${panel.channels[0].name}. + (linea piena): di più in «${data.names[1]}»; − (tratteggiata): di meno. `,
      out.length ? `Senza corrispondente, quindi fuori: ${[...new Set(out)].map((t) => `«${t}»`).join(" ")}.` : "Tutti i pezzi hanno un corrispondente.");
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
    const at = target(event);
    const same = at && state.pinned && ["query", "key"].every((side, n) => (state.focus[side]?.[panel.id] ?? null) === at[n]);
    state.pinned = Boolean(at) && !same;
    focusOn(panel, ...(at && !same ? at : [null, null]));
  }
  function release() {
    state.focus = null;
    state.pinned = false;
  }
  function focusOn(panel, i, j) {
    state.focus = i === null && j === null ? null : { query: link(panel.id, "query", i), key: link(panel.id, "key", j) };
    highlightAll();
  }
  function moveInPicture(panel, event) {
    let [i, j] = ["query", "key"].map((side) => state.focus?.[side]?.[panel.id] ?? null);
    const [T, S] = [panel.rows.length, panel.columns.length];
    const by = (n, step, size) => (n === null ? (step > 0 ? 0 : null) : n + step < 0 ? null : Math.min(n + step, size - 1));
    const key = event.key, step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[key];
    if (key === "Escape") { release(); return highlightAll(); }
    if (key === "Enter" || key === " ") state.pinned = state.focus !== null;
    else if (key === "Home") [i, j] = j === null ? [0, null] : [i, 0];
    else if (key === "End") [i, j] = j === null ? [T - 1, null] : [i, S - 1];
    else if (!step) return;
    else if (i === null && j === null) [i, j] = [0, null];
    else if (state.view === "matrix") { // la riga i, poi le sue caselle; sopra la prima riga, le colonne intere
      if (key === "ArrowUp" || key === "ArrowDown") i = j === null ? clamp(i + step, 0, T - 1) : by(i, step, T);
      else j = i === null ? clamp(j + step, 0, S - 1) : by(j, step, S);
    } else if (key === "ArrowUp" || key === "ArrowDown") [i, j] = j === null ? [clamp(i + step, 0, T - 1), null] : [null, clamp(j + step, 0, S - 1)];
    else [i, j] = key === "ArrowLeft" ? [Math.min(i ?? j, T - 1), null] : [null, Math.min(j ?? i, S - 1)];
    event.preventDefault();
    state.pinned = true; // con la tastiera il pezzo resta finché non se ne sceglie un altro
    focusOn(panel, i, j);
  }

  // -------- il riquadro: in parole, con i numeri

  const place = (panel) => ["query", "key"].map((side) => { const n = state.focus?.[side]?.[panel.id] ?? -1; return n < 0 ? null : n; });

  function ranked(values, texts, plain) {
    const order = range(values.length).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
    const top = order.slice(0, TOP).filter((n, place) => place === 0 || Math.abs(values[n]) >= 0.005);
    const rest = order.slice(top.length).reduce((sum, n) => sum + values[n], 0);
    const items = top.flatMap((n) => [html("span", { class: "voce" }, texts[n] + " ", html("b", {}, plain(values[n]))), " "]);
    return [...items, order.length > top.length && html("span", { class: "voce" }, `altri ${order.length - top.length}: `, html("b", {}, plain(rest)))].filter(Boolean);
  }
  function sentence(panel, channel, i, j) {
    const { rows, columns } = panel, { matrix } = channel, plain = panel.signed ? signed : number;
    if (i !== null && j !== null) return [`«${rows[i]}» ${role().looks} «${columns[j]}»: `, html("b", {}, show(panel, matrix[i][j]))];
    if (i !== null) return [`«${rows[i]}» ${role().looks}: `, ...ranked([...matrix[i]], columns, plain)];
    const column = matrix.map((row) => row[j]);
    return [`«${columns[j]}» è guardato da: `, ...ranked(column, rows, plain), ` (in tutto ${plain(column.reduce((a, b) => a + b, 0))})`];
  }
  function describe(panel) {
    const [i, j] = place(panel), self = map().kind === "encoder";
    const both = self && !pair && (i === null) !== (j === null); // nell'encoder lo stesso pezzo guarda ed è guardato
    const views = both ? [[i ?? j, null], [null, i ?? j]] : [[i, j]];
    if (i === null && j === null) return [html("p", {}, html("i", {}, `${panel.name}: `), "questo pezzo non ha un corrispondente.")];
    return panel.channels.flatMap((channel, c) => views.map(([a, b], v) => html("p", {},
      v === 0 && pair && c === 0 ? html("i", {}, `${panel.name} · `) : null,
      v === 0 ? html("span", { class: "canale", style: `--colore: ${panel.signed ? "transparent" : channel.color}` }, channel.name + " · ") : null,
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
    readout.replaceChildren(...(state.focus ? drawings.flatMap(({ panel }) => describe(panel))
      : [html("p", {}, "Passa su un pezzo, toccalo o usa le frecce: qui si legge che cosa guarda e chi lo guarda. Un clic lo fissa.")]));
  }

  // -------- legenda, tabella, aiuto

  const legend = html("p", { class: "nota legenda" });
  function drawLegend() {
    const scale = [0.05, 0.1, 0.25, 0.5, 1].flatMap((x) => [html("span", { class: "tacca", style: `--velo: ${tone(x)}` }), html("span", {}, number(x))]);
    legend.replaceChildren(...(state.view === "matrix" ? [html("span", {}, "peso"), ...scale, html("span", {}, "ogni riga somma a 1")]
      : [`Più una linea è scura e spessa, più il peso è grande; sotto ${number(THIN)} non è disegnata. I pesi di chi guarda sommano a 1.`]));
  }
  const table = html("details", { class: "tabella", toggle: drawTable }, html("summary", {}, "Tabella dei numeri"));
  function drawTable() {
    table.querySelector("div")?.remove();
    if (!table.open) return;
    const parts = drawings.flatMap(({ panel }) => panel.channels.map((channel) => html("table", {},
      html("caption", {}, [panel.name, channel.name].filter(Boolean).join(" · ") + ` (righe: ${role().query}; colonne: ${role().key})`),
      html("tr", {}, html("td"), ...panel.columns.map((t) => html("th", { scope: "col" }, t))),
      ...panel.rows.map((t, i) => html("tr", {}, html("th", { scope: "row" }, t), ...[...channel.matrix[i]].map((x) => html("td", {}, show(panel, x))))))));
    table.append(html("div", { class: "disegno" }, ...parts));
  }
  const help = html("details", { class: "aiuto" }, html("summary", {}, "Come si usa"), html("ul", {}, ...[
    "Le miniature sono tutto il modello: una riga per strato, una colonna per testa. Un clic apre una testa; con Maiusc si aggiunge a quelle accese.",
    "I numeri colorati accendono e spengono le teste; doppio clic (o Maiusc+Invio) ne lascia una sola.",
    "Passa su un pezzo, o toccalo, per vedere che cosa guarda e chi lo guarda. Un clic lo fissa, un altro lo lascia.",
    "Da tastiera: Tab passa da una parte all'altra; nelle miniature e nel disegno si va con le frecce, Invio sceglie, Esc lascia.",
    data.mergeable ? "«Parole intere» unisce i pezzi di una parola: i pesi si sommano sulle colonne e si mediano sulle righe, che così sommano ancora a 1. Il segno · apre un pezzo che continua la parola." : null,
    `I pesi di questa vista hanno un errore inferiore a ${String(1 / data.levels).replace(".", ",")}.`,
  ].filter(Boolean).map((text) => html("li", {}, text))));

  // -------- mettere insieme

  const title = html("p", { class: "titolo" });
  let width = 0;
  function render() {
    if (!width) return;
    const { l } = chosen(), drawn = channels();
    drawGrid();
    switches.querySelector(".tutte").setAttribute("aria-pressed", chosen().heads.size === map().h);
    title.replaceChildren(`${role().name} · strato ${l + 1} · `, ...drawn.flatMap((c, n) => [n ? " " : "", html("span", { class: "canale", style: `--colore: ${c.color}` }, c.name)]));
    drawings = [];
    const shown = panels(), gap = 16;
    const perRow = shown.length > 1 ? (width >= 1000 ? 3 : width >= 560 ? 2 : 1) : 1;
    const room = Math.min(720, shown.length === 1 && width >= 640 ? width - 266 : (width - gap * (perRow - 1)) / perRow);
    stage.style.setProperty("--colonne", perRow);
    root.dataset.forma = shown.length === 1 ? (width >= 640 ? "largo" : "stretto") : ["", "stretto", "coppia", "coppia tre"][perRow];
    stage.replaceChildren(...shown.map((panel) => drawPanel(panel, Math.floor(panel.signed && perRow === 2 ? Math.min(width, 560) : room))));
    drawLegend();
    drawTable();
    highlightAll();
  }
  root.append(controls, html("div", { class: "modello" }, grid, switches), html("div", { class: "palco" }, title, stage, legend), readout, html("div", { class: "piede" }, table, help));
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
