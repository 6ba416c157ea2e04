// La casella «Traduci» di una pagina: mostra i pezzi, i candidati e dove guarda ogni testa. Le frasi pronte hanno la risposta
// già scritta nella pagina; per le altre, a richiesta, carica il modello di `transformer.js`, che le sta davanti.
//
// Un esito, calcolato qui o scritto da `live_model`, è { text, source, written, translation, candidates, row }: i pezzi letti
// (S) e scritti (T), i candidati di ogni passo, e row(attenzione, strato, testa, i), i pesi con cui guarda il pezzo i.

const KINDS = {
  encoder: { name: "l'inglese guarda sé stesso", looks: "legge" },
  cross: { name: "l'italiano guarda l'inglese", looks: "scrive" },
  decoder: { name: "l'italiano guarda ciò che ha già scritto", looks: "scrive" },
};
const START = "\u003cs>"; // il pezzo d'inizio; scritto così non sembra un elemento della pagina
const NAMES = { encoder: "encoder", cross: "incrociata", decoder: "decoder" };

// Un elemento con attributi, ascoltatori e figli. I testi entrano come testo: un pezzo «<b>» resta «<b>».
function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const percent = (x) => `${Math.round(100 * x)} %`;
const decimal = (x, digits) => x.toFixed(digits).replace(".", ",");
const range = (n) => Array.from({ length: n }, (_, i) => i);
const pause = () => new Promise((resolve) => setTimeout(resolve)); // lascia che la pagina si ridisegni

// Come si mostra un pezzo: senza «▁»; un punto davanti a chi continua una parola.
function label(piece) {
  if (piece.startsWith(SPACE)) return piece.slice(1) || SPACE;
  return /^[\p{L}\p{N}]/u.test(piece) ? `·${piece}` : piece;
}

// L'esito scritto nella pagina: i pesi sono centesimi, un byte ciascuno, nell'ordine encoder, decoder, cross.
function unpackReady(ready, { layers, heads }) {
  const bytes = new Uint8Array(atob(ready.weights).length), S = ready.source.length, T = ready.written.length;
  decodeBase64(ready.weights, bytes, 0);
  const shapes = { encoder: [S, S], decoder: [T, T], cross: [T, S] }, starts = {};
  let start = 0;
  for (const [kind, [rows, columns]] of Object.entries(shapes)) {
    starts[kind] = start;
    start += layers[kind] * heads[kind] * rows * columns;
  }
  const row = (kind, layer, head, i) => {
    const [rows, columns] = shapes[kind], from = starts[kind] + ((layer * heads[kind] + head) * rows + i) * columns;
    return Array.from(bytes.subarray(from, from + columns), (code) => code / 100);
  };
  return { ...ready, row };
}

// L'esito del modello vivo: comincia con la lettura, e si allunga di un pezzo a ogni passo.
function liveResult({ model, tokenizer }, text, ids) {
  const encoded = model.encode(ids), steps = [];
  const result = { text, source: ids.map((id) => tokenizer.pieces[id]), written: [], translation: "", candidates: [] };
  result.row = (kind, layer, head, i) => (kind === "encoder" ? encoded.attention[layer][head] : steps[i][kind][layer])[kind === "encoder" ? i : head];
  const writing = model.write(ids, { encoded });
  result.advance = () => { // scrive un pezzo; falso se la frase è finita
    const { value: step, done } = writing.next();
    if (done) return false;
    steps.push(step);
    result.written.push(tokenizer.pieces[step.id]);
    result.candidates.push(step.candidates.map(({ id, probability }) => [tokenizer.pieces[id], probability]));
    result.translation = tokenizer.decode(steps.map(({ id }) => id));
    return true;
  };
  return result;
}

// Un gruppo di scelte esclusive.
function choice(legend, name, options, chosen, onChange) {
  const labels = options.map(([value, text]) => html("label", {},
    html("input", { type: "radio", name, value, checked: value === chosen, "data-chiave": `${name}${value}`, change: () => onChange(value) }), html("span", {}, text)));
  return html("fieldset", {}, html("legend", {}, legend), ...labels);
}

function start(css, data) {
  for (const host of document.querySelectorAll(`[data-vivo="${data.id}"]`)) if (!host.shadowRoot) mount(host, css, data);
}

function mount(host, css, data) {
  const shadow = host.attachShadow({ mode: "open" });
  const ready = data.sentences.map((sentence) => unpackReady(sentence, data));
  const size = `circa ${Math.ceil(data.bytes / 1e6)} MB`;
  let live = null, result = null, run = 0, plain = ""; // il modello, l'esito mostrato, quale richiesta è l'ultima, tutte accese
  let loading = false, asked = ""; // se i pesi stanno arrivando; l'ultima frase chiesta
  // Ciò che si guarda: attenzione, strato, testa, il pezzo scelto nelle due frasi, le teste spente.
  const { kind, layer, head, focus } = data.start;
  const state = { kind, layer, head, picked: { source: 0, written: 0 }, off: new Set() };

  // -------- gli elementi fermi
  const box = html("textarea", { id: "frase", rows: 2, maxlength: 600, lang: "en", spellcheck: "false", keydown: (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    translate();
  } });
  const form = html("form", { submit: (event) => { event.preventDefault(); translate(); } },
    html("label", { for: "frase" }, "Una frase in inglese"), html("div", { class: "riga" }, box, html("button", { class: "forte" }, "Traduci")));
  const chips = html("div", { class: "gruppo pronte", role: "group", "aria-label": "Frasi pronte" },
    ...ready.map(({ text }) => html("button", { type: "button", lang: "en", click: () => choose(text) }, text)));
  const status = html("p", { role: "status", class: "stato" });
  const offer = html("div", { class: "offerta", hidden: true });
  const output = html("div", { class: "esito", hidden: true });
  const root = html("div", { class: "vivo", role: "group", "aria-label": "Traduttore dall'inglese all'italiano" },
    form, offer, status, chips, output);
  shadow.append(html("style", {}, css), root);

  function choose(text) {
    box.value = text;
    translate();
  }

  // -------- tradurre
  async function translate() {
    const text = box.value.trim(), mine = ++run;
    if (loading) return say("Il modello sta arrivando: poi traduco.");
    offer.hidden = true;
    if (text !== asked) state.picked = { source: 0, written: 0 };
    asked = text;
    if (!text) return say("Scrivi una frase in inglese, o scegline una pronta.");
    if (!live) return known(text) && !state.off.size ? finish(known(text)) : ask();
    const ids = live.tokenizer.encode(text), max = live.model.config.max_len;
    if (ids.length > max) return say(`La frase ha ${ids.length} pezzi: il modello ne legge al più ${max}. Accorciala.`);
    say("Traduco…");
    await pause();
    live.model.off = new Set();
    if (state.off.size) plain = live.tokenizer.decode(live.model.greedy(ids));
    live.model.off = state.off;
    const started = performance.now(), chosen = state.picked.written;
    const next = liveResult(live, text, ids);
    while (next.advance()) { // mentre scrive si guarda l'ultimo pezzo, poi si torna a quello scelto
      state.picked.written = next.written.length - 1;
      show(next);
      await pause();
      if (mine !== run) return;
    }
    state.picked.written = chosen;
    finish(next, `${next.written.length} pezzi in ${decimal((performance.now() - started) / 1000, 1)} secondi, qui nel tuo browser.`);
  }

  function finish(next, message = "") {
    show(next);
    const before = state.off.size ? ` Con tutte le teste accese: «${plain}»` : "";
    say(`${message}${before}`.trim());
    remember();
  }

  function say(message) { status.textContent = message; }

  // -------- caricare il modello
  function ask() {
    const phone = matchMedia("(pointer: coarse)").matches || navigator.connection?.saveData;
    const why = state.off.size ? "Per spegnere una testa" : "Per una frase tua";
    const load = html("button", { type: "button", class: "forte", click: fetchModel }, `Carica il modello (${size})`);
    const refuse = html("button", { type: "button", click: () => {
      offer.hidden = true;
      state.off.clear();
      if (result) show(result);
      say("Va bene: le frasi pronte rispondono senza scaricare nulla.");
      box.focus();
    } }, "No, grazie");
    offer.replaceChildren(
      html("p", {}, `${why} il modello deve arrivare in questa pagina: ${size}, una volta sola. Poi traduce qui, e ciò che scrivi non esce da questo browser.`),
      ...(phone ? [html("p", {}, html("strong", {}, "Con una rete a consumo pensaci: "), "meglio il Wi-Fi.")] : []),
      html("div", { class: "gruppo" }, load, refuse));
    offer.hidden = false;
    say("");
    load.focus();
  }

  async function fetchModel() {
    const bar = html("progress", { max: 1, value: 0, "aria-label": "caricamento del modello" });
    const text = html("span", {}, "0 %");
    offer.replaceChildren(html("p", {}, "Carico il modello… ", text), bar);
    loading = true;
    try {
      live = await loadModel(data.url, (done, total) => { bar.value = done / total; text.textContent = percent(done / total); });
      loading = false;
      translate();
    } catch (error) {
      loading = false;
      offer.hidden = true;
      state.off.clear();
      if (result) show(result);
      say(`Non riesco a caricare il modello (${error.message}) Le frasi pronte rispondono lo stesso.`);
    }
  }

  // -------- mostrare
  const sides = { encoder: ["source", "source"], cross: ["written", "source"], decoder: ["written", "known"] };
  const pieces = (side) => (side === "known" ? [START, ...result.written.slice(0, -1)] : result[side]);

  function show(next) {
    const focused = shadow.activeElement?.dataset.chiave; // si ridisegna tutto: il fuoco torna dov'era
    result = next;
    for (const side of ["source", "written"]) state.picked[side] = Math.min(state.picked[side], next[side].length - 1);
    output.hidden = false;
    output.replaceChildren(row("source", "en", "L'inglese, in pezzi"), row("written", "it", "L'italiano, un pezzo alla volta"),
      html("p", { class: "traduzione", lang: "it" }, next.translation), tools(),
      html("div", { class: "colonne" }, candidates(), attention()));
    if (focused) shadow.querySelector(`[data-chiave="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  const query = () => state.picked[sides[state.kind][0]]; // il pezzo che guarda

  // Una fila di pezzi: quello scelto ha il bordo, quelli guardati dalla testa scelta hanno il fondo tanto più scuro.
  function row(side, lang, title) {
    const [asks, seen] = sides[state.kind], w = result.row(state.kind, state.layer, state.head, query());
    const looked = (i) => (seen === side ? w[i] : seen === "known" && side === "written" ? w[i + 1] : undefined) ?? 0;
    const buttons = result[side].map((piece, i) => html("button", {
      type: "button", class: piece.startsWith(SPACE) ? "pezzo" : "pezzo continua", style: `--peso: ${percent(looked(i)).replace(" ", "")}`,
      "data-chiave": `${side}${i}`, "aria-pressed": String(side === asks && i === query()),
      click: () => pick(side, i),
    }, label(piece), ...(looked(i) >= 0.005 ? [html("small", {}, percent(looked(i)))] : [])));
    return html("div", {}, html("p", { class: "titolo" }, title), html("div", { class: "pezzi", role: "group", "aria-label": title, lang }, ...buttons));
  }

  function pick(side, i) {
    if (side !== sides[state.kind][0]) setKind(side === "source" ? "encoder" : "cross");
    state.picked[side] = i;
    refresh();
  }

  function setKind(kind) {
    state.kind = kind;
    state.layer = Math.min(state.layer, data.layers[kind] - 1);
    state.head = Math.min(state.head, data.heads[kind] - 1);
  }

  function refresh() {
    show(result);
    remember();
  }

  function tools() {
    const word = data.swap.find((x) => new RegExp(`\\b${x}\\b`).test(result.text));
    const other = data.swap.find((x) => x !== word);
    const swap = word && html("button", { type: "button", "data-chiave": "scambia", click: () => choose(result.text.replace(new RegExp(`\\b${word}\\b`), other)) },
      "Metti ", html("i", { lang: "en" }, other), " al posto di ", html("i", { lang: "en" }, word));
    const link = html("button", { type: "button", "data-chiave": "link", click: copyLink }, "Copia il collegamento");
    const on = state.off.size > 0 && html("button", { type: "button", "data-chiave": "accendi", click: () => { state.off.clear(); translate(); } }, "Riaccendi tutte le teste");
    return html("div", { class: "gruppo" }, ...[swap, on, link].filter((x) => x));
  }

  // I primi cinque candidati del pezzo italiano scelto.
  function candidates() {
    const t = state.picked.written;
    const bars = result.candidates[t].map(([piece, p]) => html("li", { "data-scelto": piece === result.written[t] },
      html("span", { lang: "it" }, label(piece)), html("span", { class: "barra", style: `--lunghezza: ${100 * p}%` }), html("span", { class: "cifra" }, `${decimal(100 * p, 1)} %`)));
    return html("section", {}, html("p", { class: "titolo" }, `Passo ${t + 1}: che cosa poteva scrivere`), html("ol", {}, ...bars));
  }

  // Quanto ogni testa dello strato guarda ogni pezzo: una riga per pezzo, una colonna per testa.
  function attention() {
    const { kind, layer, head } = state, [asks, seen] = sides[kind];
    const table = range(data.heads[kind]).map((h) => result.row(kind, layer, h, query()));
    const header = range(data.heads[kind]).map((h) => {
      const off = state.off.has(`${kind}.${layer}.${h}`);
      return html("th", { scope: "col" },
        html("button", { type: "button", "aria-pressed": String(h === head), "data-chiave": `testa${h}`, click: () => { state.head = h; refresh(); } }, `testa ${h + 1}`),
        html("button", { type: "button", class: "spegni", "aria-pressed": String(off), "data-chiave": `spegni${h}`, "aria-label": `spegni la testa ${h + 1}`,
          click: () => toggle(`${kind}.${layer}.${h}`) }, off ? "spenta" : "spegni"));
    });
    const seenPieces = kind === "decoder" ? pieces(seen).slice(0, query() + 1) : pieces(seen); // il futuro non si guarda
    const body = seenPieces.map((piece, i) => html("tr", {}, html("th", { scope: "row" }, label(piece)),
      ...table.map((w, h) => html("td", { style: `--peso: ${percent(w[i]).replace(" ", "")}`, "data-scelta": h === head }, w[i] >= 0.005 ? percent(w[i]) : ""))));
    const caption = `Mentre ${KINDS[kind].looks} «${label(pieces(asks)[query()])}», dove guarda ogni testa dello strato ${layer + 1}`;
    return html("section", {},
      choice("attenzione", "attenzione", Object.keys(KINDS).map((k) => [k, NAMES[k]]), kind, (k) => { setKind(k); refresh(); }),
      choice("strato", "strato", range(data.layers[kind]).map((l) => [l, String(l + 1)]), layer, (l) => { state.layer = l; refresh(); }),
      html("p", { class: "nota" }, `${KINDS[kind].name[0].toUpperCase()}${KINDS[kind].name.slice(1)}.`),
      html("div", { class: "tabella", tabindex: 0, role: "region", "aria-label": caption },
        html("table", {}, html("caption", {}, caption), html("thead", {}, html("tr", {}, html("td"), ...header)), html("tbody", {}, ...body))));
  }

  function toggle(name) {
    if (!state.off.delete(name)) state.off.add(name);
    box.value = result.text;
    translate();
    if (!live) show(result);
  }

  // -------- l'indirizzo porta la frase e ciò che si guarda; strati, teste e pezzi vi si contano da 1
  function address() {
    const { kind, layer, head, off } = state, fields = { frase: result.text, guarda: kind, strato: layer + 1, testa: head + 1, pezzo: query() + 1 };
    if (off.size) fields.spente = [...off].join("_");
    return `#${data.id}?${new URLSearchParams(fields)}`;
  }

  function remember() { history.replaceState(null, "", address()); }

  async function copyLink() {
    remember();
    try {
      await navigator.clipboard.writeText(location.href);
      say("Collegamento copiato.");
    } catch {
      say("Il collegamento è nella barra dell'indirizzo: copialo da lì.");
    }
  }

  function recall() { // vero se l'indirizzo parla di questa casella
    const [id, query] = location.hash.slice(1).split("?");
    if (id !== data.id || !query) return false;
    const fields = new URLSearchParams(query), count = (name, n) => Math.min(Math.max(1, Math.trunc(fields.get(name)) || 1), n) - 1;
    state.kind = Object.hasOwn(KINDS, fields.get("guarda")) ? fields.get("guarda") : "cross";
    state.layer = count("strato", data.layers[state.kind]);
    state.head = count("testa", data.heads[state.kind]);
    state.picked[sides[state.kind][0]] = count("pezzo", Infinity);
    state.off = new Set((fields.get("spente") ?? "").split("_").filter((name) => /^(encoder|decoder|cross)\.\d+\.\d+$/.test(name)));
    box.value = asked = (fields.get("frase") ?? "").trim();
    return true;
  }

  const known = (text) => ready.find((sentence) => sentence.text === text);
  const open = () => { // ciò che l'indirizzo chiede; una frase pronta si vede subito, anche se poi serve il modello
    if (known(asked)) show(known(asked));
    host.scrollIntoView();
    translate();
  };
  addEventListener("hashchange", () => recall() && open());
  if (recall()) return open();
  box.value = asked = ready[0].text;
  state.picked[sides[state.kind][0]] = focus;
  show(ready[0]);
}
