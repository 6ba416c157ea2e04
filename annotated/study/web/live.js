// La casella «Traduci» di una pagina: i pezzi, i candidati di ogni passo e, nel visore di `viewer.js`, dove guarda ogni testa.
// Le frasi pronte hanno la risposta già scritta nella pagina; per le altre, a richiesta, si carica il modello di
// `transformer.js`. I due programmi le stanno davanti.
//
// Un esito, calcolato qui o scritto da `live_model`, è { text, translation, candidates, maps }: i candidati di ogni passo, e le
// mappe delle tre attenzioni come le vuole il visore.

const percent = (x) => `${Math.round(100 * x)} %`;
const decimal = (x, digits) => x.toFixed(digits).replace(".", ",");
const same = (text) => straight(text).replace(/\s+/g, " "); // per il modello, la stessa frase
const list = (texts) => new Intl.ListFormat("it").format(texts);
const duration = (ms) => (ms < 1000 ? `${Math.max(1, Math.round(ms))} millisecondi` : `${decimal(ms / 1000, 1)} secondi`);
const NOTHING = "Scrivi una frase, o scegline una pronta.";
const language = (code) => new Intl.DisplayNames("it", { type: "language" }).of(code);
const REDRAW = 100; // mentre il modello scrive si ridisegna al più ogni tanti millisecondi
const WORDS = /[\p{L}\p{M}\p{N}]+|\p{RI}{2}|\S(?:\u200d\S|[\ufe0f\p{EMod}])*/gu, WORD = /^[\p{L}\p{M}\p{N}]+$/u; // di un testo, le parole, e uno per uno i segni e le emoji
const [ENCODER, , CROSS] = range(3); // l'ordine delle mappe: encoder, decoder, cross
const sourceOf = ({ maps }) => maps[ENCODER].query, writtenOf = ({ maps }) => maps[CROSS].query;

// Da tabelle [strato][testa][riga] a una mappa; dove una riga è più corta, il futuro, il peso è zero.
function toMap(kind, tables, queries, keys) {
  const N = tables.length, h = tables[0].length, T = queries.length, S = keys.length, weights = new Float64Array(N * h * T * S);
  tables.forEach((heads, l) => heads.forEach((rows, n) => rows.forEach((row, i) => weights.set(row, ((l * h + n) * T + i) * S))));
  return withAxes({ kind, N, h, T, S, queries, keys }, weights);
}

// Di una testa: la sua fetta di una query, e delle chiavi. (Nel decoder K, intanto, si è allungata.)
function headVectors({ weights, q, K }, h) { // → query (d_k,), chiavi (S, d_k)
  const d_k = q.length / weights.length, slice = (x) => x.subarray(h * d_k, (h + 1) * d_k);
  return { q: slice(q), K: K.map(slice) };
}

// Un pezzo come testo: uno sconosciuto si copia dalla frase, divisa in `read`, dove il modello guarda.
const nameOf = (tokenizer, read, id, from) => (id === UNK ? read[from] : tokenizer.pieces[id]);
const idOf = (tokenizer, name) => (name === tokenizer.pieces[EOS] ? EOS : tokenizer.ids.get(name) ?? UNK); // e ritorno
const translationOf = (tokenizer, read, steps) => tokenizer.join(steps.flatMap(({ id, from }) => (id === EOS ? [] : [nameOf(tokenizer, read, id, from)])));

const labelOf = (piece) => axis([OPENS, piece]).pieces[1]; // «·» davanti, se continua una parola

// L'esito del modello vivo, dai passi che ha scritto fin qui.
function liveResult({ model, tokenizer }, text, encoded, steps) {
  const source = [...tokenizer.split(text), tokenizer.pieces[EOS]], name = (id, from) => nameOf(tokenizer, source, id, from);
  const written = steps.map(({ id, from }) => name(id, from));
  const read = encoded.attention.map(({ weights }) => weights), known = [tokenizer.pieces[BOS], ...written.slice(0, -1)];
  const tables = (kind) => range(model.layers[kind]).map((l) => range(model.heads[kind]).map((h) => steps.map((one) => one[kind][l].weights[h])));
  const looked = (kind, l, i) => (kind === "encoder" ? { ...encoded.attention[l], q: encoded.attention[l].Q[i] } : steps[i][kind][l]);
  const maps = [toMap("encoder", read, source, source), toMap("decoder", tables("decoder"), written, known), toMap("cross", tables("cross"), written, source)];
  return {
    text, translation: translationOf(tokenizer, source, steps), open: steps.at(-1).id !== EOS, // sta ancora scrivendo
    candidates: steps.map(({ from, candidates }) => candidates.map(({ id, probability }) => [name(id, from), probability])),
    maps: maps.map((map) => ({ ...map, vectors: (l, h, i) => headVectors(looked(map.kind, l, i), h) })),
  };
}

// Il passo in cui il modello ha esitato di più: quello in cui il primo candidato è meno probabile.
const hesitation = ({ candidates }) => range(candidates.length).reduce((a, b) => (candidates[b][0][1] < candidates[a][0][1] ? b : a));

// ---------------------------------------------------------------- dentro un peso: le risposte pronte portano i pesi già fatti

function offerModel({ text, note, busy, start }) {
  return [html("p", {}, "Questa risposta era già scritta nella pagina: porta i pesi, e non i vettori da cui vengono."), note,
    html("button", { type: "button", class: "tutte", "data-chiave": "carica", "aria-disabled": busy && "true", click: start }, busy ? "Carico il modello…" : text)];
}

// ---------------------------------------------------------------- la casella

// Un modello si carica una volta per pagina, quante che siano le caselle che lo usano.
const loaded = (globalThis.annotatedModels ??= new Map());
function modelAt(url, progress) {
  if (!loaded.has(url)) loaded.set(url, loadModel(url, progress).catch((error) => { loaded.delete(url); throw error; }));
  return loaded.get(url);
}

class LiveBox {
  constructor(host, styles, data, ready) { // `ready`: di ogni modello, gli esiti delle frasi pronte
    const shadow = host.attachShadow({ mode: "open" }), [viewerStyle, style] = styles;
    // `off`: le teste spente; `plain`: la traduzione con tutte accese; `prefix`: i pezzi con cui la traduzione deve cominciare, e
    // `imposed` i posti di quelli che ha scelto chi legge; `run`: quale richiesta è l'ultima; `picked`: il passo di cui si vedono i
    // candidati, se lo si è scelto; `looking`: che cosa si va a guardare dopo la traduzione; `loading`: i modelli che stanno
    // arrivando; `spent`: il tempo del calcolo
    Object.assign(this, { host, data, m: 0, live: null, ready, result: null, off: new Set(), plain: "", prefix: [], imposed: [], run: 0, whole: new Map(), loading: new Set(), spent: 0, asked: "", picked: null, wanted: null, looking: null });
    [this.from, this.to] = data.models[0].languages; // le sigle delle due lingue, se si sanno
    this.offer = html("div", { class: "offerta", hidden: true });
    this.status = html("p", { role: "status", class: "stato" });
    this.warning = html("p", { role: "status", class: "avviso" });
    this.told = html("p", { role: "status", class: "imposto" });
    this.said = html("p", { role: "status", class: "detto" }); // per chi ascolta: la traduzione
    this.choices = html("div", { class: "modelli" });
    this.answer = html("div", { class: "esito" });
    this.reply = html("div", { class: "risposta", tabindex: -1 }, this.said, this.status, this.warning, this.told, this.answer);
    this.candidates = html("section", { class: "candidati" });
    this.pieces = html("div", { class: "esito", pointerleave: () => this.viewer.set({ over: null }) }); // le file dentro si rifanno
    const figure = html("div");
    reserve(figure);
    shadow.append(html("style", {}, style), html("div", { class: "vivo", role: "group", "aria-label": "Traduttore" },
      this.choices, this.drawSentences(), this.drawForm(), this.offer, this.reply, this.candidates, this.pieces, figure));
    followTheme(host);
    this.viewer = new Viewer(figure, viewerStyle, firstState(data.start), { changed: (v) => this.changed(v), address: (fields) => this.address(fields) });
    whenNear(figure, data.anchor, () => this.viewer.open()); // su un telefono il visore sta più giù di ciò che si vede
  }

  open() {
    addEventListener("hashchange", () => this.recall());
    if (this.recall()) return;
    const [[first]] = this.ready, { focus } = this.data.start, query = typeof focus === "string" ? first.maps[this.data.start.k].query.pieces.indexOf(focus) : focus;
    this.box.value = this.asked = first.text;
    this.show(first, { focus: { panel: 0, query: Math.max(0, query), key: null } });
  }

  get model() { return this.data.models[this.m]; }
  get size() { return `circa ${Math.ceil(this.model.bytes / 1e6)} MB`; }
  get metered() { // l'avviso per chi, forse, paga ciò che scarica
    const phone = matchMedia("(max-width: 40rem)").matches || navigator.connection?.saveData;
    return phone && html("p", {}, html("strong", {}, "Con una rete a consumo pensaci: "), "meglio il Wi-Fi.");
  }
  get load() { // per il visore: come avere il modello, quando la risposta era già pronta
    const here = loaded.has(this.model.url), text = here ? "Usa il modello" : `Carica il modello (${this.size})`;
    return { text, note: !here && this.metered, busy: this.loading.has(this.m), start: () => this.loadShown() };
  }
  get scene() {
    const toggle = (name) => this.toggle(name), inside = (v) => (mapOf(v).vectors ? drawInside(v) : offerModel(this.load));
    return { sentences: [this.result.maps], names: [], pairs: [], colors: this.data.colors, levels: this.result.levels, off: this.off, toggle, inside };
  }
  known(text) { return this.ready[this.m].find((sentence) => same(sentence.text) === same(text)); }
  say(message) { this.status.textContent = message; }

  // -------- gli elementi fermi
  drawForm() {
    const enter = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.submit();
    };
    const full = () => this.box.value.length === this.box.maxLength && this.say("Qui stanno 600 caratteri, e il resto non entra.");
    this.box = html("textarea", { id: "frase", rows: 2, maxlength: 600, lang: this.from, dir: "auto", spellcheck: "false", keydown: enter, input: full });
    return html("form", { submit: (event) => { event.preventDefault(); this.submit(); } },
      html("label", { for: "frase" }, this.from ? `Una frase in ${language(this.from)}` : "Una frase da tradurre"), html("div", { class: "riga" }, this.box, html("button", { class: "forte" }, "Traduci")));
  }
  drawSentences() {
    const texts = this.data.models[0].sentences.map(({ text }) => text);
    return html("div", { class: "gruppo pronte", role: "group", "aria-label": "Frasi pronte" },
      ...texts.map((text) => html("button", { type: "button", lang: this.from, click: () => this.choose(text) }, text)));
  }

  choose(text) {
    this.box.value = text;
    this.submit();
  }

  // -------- tradurre
  submit() {
    this.looking = () => this.look();
    this.translate();
  }

  async translate(shown) { // `shown`: la frase di cui si vede la risposta; se manca, quella della casella
    const text = shown ?? this.box.value.trim(), coming = this.loading.has(this.m);
    if (text && !shown) this.release(); // dalla casella si riparte liberi
    const ready = !this.off.size && !this.prefix.length && this.known(text);
    this.offer.hidden = !coming;
    if (text !== this.asked) this.picked = this.chosen = null;
    this.asked = text;
    if (this.result) this.refresh(); // la traduzione che resta in vista dice di quale frase è
    this.warning.textContent = this.warn(text);
    if (!text) return this.say(NOTHING);
    if (!this.live) return ready ? this.finish(ready) : coming ? this.say("Il modello sta arrivando: poi traduco.") : this.ask(shown);
    const ids = this.live.tokenizer.encode(text), max = this.live.model.config.max_len;
    if (ids.length < 2) return this.say(NOTHING); // di soli segni invisibili
    if (ids.length > max) return this.say(`La frase ha ${ids.length} pezzi: il modello ne legge al più ${max}. Accorciala.`);
    const mine = ++this.run;
    this.say("Traduco…");
    await this.pause(mine);
    this.write(text, ids, mine);
  }

  // Lascia che la pagina si ridisegni. Se intanto si è chiesto altro, chi aspetta non riprende più.
  pause(mine) { return new Promise((resolve) => setTimeout(() => mine === this.run && resolve())); }

  // Un passo di un lavoro del modello. Il modello è di tutte le caselle della pagina: ognuna, ogni volta, dice quali teste spegne.
  next(work, off) {
    const start = performance.now();
    this.live.model.off = off;
    const step = work.next();
    this.spent += performance.now() - start; // il tempo è quello del calcolo, non quello del disegno
    return step;
  }

  async follow(work, off, mine) { // tutti i passi di un lavoro, lasciando vivere la pagina
    const steps = [];
    for (let step; !(step = this.next(work, off)).done; await this.pause(mine)) steps.push(step.value);
    return steps;
  }

  async read(ids, off, mine) {
    return (await this.follow(this.live.model.reading(ids), off, mine)).at(-1);
  }

  async writeWhole(text, ids, prefix, mine) { // la traduzione con tutte le teste accese
    const off = new Set(), encoded = await this.read(ids, off, mine);
    const steps = await this.follow(this.live.model.write(ids, { prefix, encoded }), off, mine);
    return translationOf(this.live.tokenizer, this.live.tokenizer.split(text), steps);
  }

  // Scrive la traduzione un pezzo alla volta, e ogni tanto la mostra.
  async write(text, ids, mine) {
    const key = JSON.stringify([this.m, text, this.prefix]), prefix = this.prefix.map((name) => idOf(this.live.tokenizer, name));
    const ready = prefix.length ? null : this.known(text);
    if (this.off.size) this.plain = ready?.translation ?? this.whole.get(key) ?? (await this.writeWhole(text, ids, prefix, mine));
    this.spent = 0;
    const encoded = await this.read(ids, this.off, mine), writing = this.live.model.write(ids, { prefix, encoded });
    const { picked, focus } = (this.chosen ??= { picked: this.picked, focus: this.viewer.state.focus }); // quelli di chi legge, anche se un'altra scrittura s'è interrotta
    const { k } = this.viewer.state, steps = [], result = () => liveResult(this.live, text, encoded, steps);
    let drawn = performance.now(), cost = 0; // di tutto il tempo, il disegno ne prende al più un quinto
    this.viewer.slots.riquadro.setAttribute("aria-live", "off"); // chi ascolta sente la traduzione finita, non ogni pezzo
    for (let step; !(step = this.next(writing, this.off)).done;) {
      steps.push(step.value);
      const start = performance.now();
      if (start - drawn < Math.max(REDRAW, 4 * cost)) continue;
      const now = result(), reading = this.viewer.state.k === ENCODER; // mentre scrive si guarda l'ultimo pezzo, poi si torna a quello scelto
      this.picked = steps.length - 1;
      this.show(now, reading ? {} : { focus: { panel: 0, query: writtenOf(now)[this.viewer.state.words ? "words" : "pieces"].length - 1, key: null } });
      await this.pause(mine);
      [drawn, cost] = [performance.now(), performance.now() - start];
    }
    this.picked = picked;
    const done = result();
    if (!this.off.size) this.whole.set(key, done.translation);
    this.finish(done, `${steps.length} pezzi in ${duration(this.spent)}, qui nel tuo browser.`, this.viewer.state.k === k ? { focus } : {});
  }

  finish(result, message = "", change = {}) {
    this.viewer.slots.riquadro.setAttribute("aria-live", "polite");
    this.show(result, this.wanted ?? change); // ciò che l'indirizzo chiede, la prima volta
    this.wanted = this.chosen = null;
    const before = this.off.size ? ` Con tutte le teste accese: «${this.plain}»` : "";
    this.say(`${message}${before}`.trim());
    this.said.textContent = `Traduzione: ${result.translation}`;
    remember(this.address(toFields(this.viewer)));
    this.looking?.();
    this.looking = null;
  }

  look() { // porta in vista la traduzione e il disegno, se il disegno sta più giù; il fuoco resta dov'è
    if (this.viewer.host.getBoundingClientRect().top >= 0.6 * innerHeight) this.reply.scrollIntoView();
  }

  // Ciò che il modello non può conoscere: se il suo vocabolario è chiuso, le parole che non vi sono; se no, i segni mai visti.
  unknown(text) {
    const { words } = this.model, found = [...new Set(straight(text).normalize("NFKC").match(WORDS) ?? [])];
    return found.filter((one) => (words.length && WORD.test(one) ? !words.includes(one) : this.live?.tokenizer.encode(one).includes(UNK)));
  }

  warn(text) {
    const found = this.unknown(text).map((one) => `«${one}»`), others = this.data.models.filter(({ words }) => !words.length);
    if (!found.length) return "";
    const shown = found.length > 6 ? [...found.slice(0, 5), `altri ${found.length - 5}`] : found;
    if (!this.model.words.length) return `Il vocabolario di ${this.model.name} non ha ${list(shown)}: la traduzione può soltanto copiarne i segni.`;
    const advice = others.length ? ` Per l'inglese vero passa a ${others[0].name}.` : "";
    return `${this.model.name} non ha mai visto ${list(shown)}: lì scrive a caso.${advice}`;
  }

  // Senza modello e senza risposta pronta: si chiede prima di scaricare.
  ask(shown) {
    const { size } = this, why = this.prefix.length ? "Per scegliere un pezzo" : this.off.size ? "Per spegnere una testa" : "Per questa frase";
    const load = html("button", { type: "button", class: "forte", "aria-describedby": "perche", keydown: (event) => event.repeat && event.preventDefault(), click: () => this.fetchModel(shown) }, `Carica il modello (${size})`);
    const refuse = html("button", { type: "button", click: () => this.giveUp("Va bene: le frasi pronte rispondono senza scaricare nulla.") }, "No, grazie");
    fill(this.offer, [
      html("p", { id: "perche" }, `${why} il modello deve arrivare in questa pagina: ${size}, una volta sola. Poi traduce qui, e ciò che scrivi non esce da questo browser.`),
      this.metered, html("div", { class: "gruppo" }, load, refuse)]);
    this.offer.hidden = false;
    this.viewer.slots.riquadro.setAttribute("aria-live", "polite"); // una scrittura interrotta lo lascia muto
    const choosing = this.choices.contains(this.host.shadowRoot.activeElement); // chi scorre i modelli con le frecce resta lì
    this.say(choosing ? "Questo modello va prima caricato." : "");
    if (!choosing) load.focus();
  }

  giveUp(message) {
    this.offer.hidden = true;
    this.looking = null;
    this.warning.textContent = "";
    this.off.clear();
    this.release();
    if (this.result) {
      this.m = this.result.m; // si torna al modello di ciò che si vede
      this.show(this.result);
      this.adopt();
    }
    this.say(message);
    this.box.focus();
  }

  async fetchModel(shown) {
    const { m, model: { url } } = this, here = loaded.has(url); // se l'ha già chiesto un'altra casella, quanto ne manca lo sa lei
    const bar = html("progress", { max: 1, value: here ? null : 0, "aria-label": "caricamento del modello" }), text = html("span", {}, here ? "" : "0 %");
    if (this.offer.matches(":focus-within")) this.reply.focus({ preventScroll: true }); // il bottone sparisce
    this.say("Carico il modello.");
    this.offer.replaceChildren(html("p", {}, "Carico il modello… ", text), bar);
    this.offer.hidden = false;
    this.loading.add(m);
    if (this.result) this.viewer.show(this.scene);
    const arriving = modelAt(url, (done, total) => { bar.value = done / total; text.textContent = percent(done / total); });
    const { live, error } = await arriving.then((live) => ({ live }), (error) => ({ error }));
    this.loading.delete(m);
    if (m !== this.m) return; // mentre arrivava se n'è scelto un altro
    if (error) return this.giveUp(`Non riesco a caricare il modello: ${error.message} Le frasi pronte rispondono lo stesso.`);
    this.live = live;
    this.translate(shown);
  }

  loadShown() { // il modello lo chiede il visore, per la risposta che mostra; poi ci si torna
    if (this.loading.has(this.m)) return;
    this.fetchModel(this.result.text);
    this.offer.scrollIntoView({ block: "center" });
    this.looking = () => {
      const summary = this.viewer.slots.piede.querySelector("summary[data-chiave='dentro']");
      summary.scrollIntoView();
      summary.focus({ preventScroll: true });
    };
  }

  change(m) {
    Object.assign(this, { m, live: null, run: this.run + 1 });
    this.off.clear();
    this.begin();
  }

  async begin() { // un altro modello: se i suoi pesi ci sono già si usa, se no rispondono le frasi pronte
    this.release();
    if (this.loading.has(this.m)) this.fetchModel(); // sta arrivando: se ne rivede la barra
    else if (!(await this.adopt())) return;
    this.translate();
  }

  async adopt() { // prende i pesi del modello scelto, se ci sono già; falso se intanto se n'è scelto un altro
    const { m } = this, live = (await loaded.get(this.model.url)?.catch(() => null)) ?? null;
    if (m === this.m) this.live = live;
    return m === this.m;
  }

  toggle(name) {
    if (!this.off.delete(name)) this.off.add(name);
    this.viewer.show(this.scene);
    this.translate(this.result.text);
  }

  // Il candidato toccato al passo t: da lì in poi il modello continua da solo.
  impose(t, piece) {
    const { text, maps } = this.result, written = maps[CROSS].queries;
    const before = this.imposed.filter((place) => place < t && this.prefix[place] === written[place]);
    Object.assign(this, { asked: text, prefix: [...written.slice(0, t), piece], imposed: [...before, t], picked: t, chosen: null });
    this.told.textContent = `Imposto: ${list(this.imposed.map((place) => `«${labelOf(this.prefix[place])}»`))}.`;
    this.reply.focus(); // il bottone sparisce, e si vede la traduzione
    this.translate(text);
  }

  release() {
    this.prefix = this.imposed = [];
    this.told.textContent = "";
  }

  undo(change) { // si torna indietro su ciò che è spento o imposto
    change();
    this.reply.focus({ preventScroll: true }); // il bottone sparisce
    this.translate(this.result.text);
  }

  // -------- mostrare: l'esito nel visore, e intorno i pezzi e i candidati
  show(result, change) {
    this.result = { m: this.m, ...result }; // di quale modello è
    if (this.picked >= result.candidates.length) this.picked = null;
    this.viewer.show(this.scene, change);
    this.seen = JSON.stringify(toFields(this.viewer));
    this.pick(this.viewer);
    this.refresh();
  }

  changed(v) {
    this.pick(v);
    this.drawSteps();
    const seen = JSON.stringify(toFields(v));
    if (seen !== this.seen) remember(this.address(toFields(v))); // chi passa soltanto non cambia l'indirizzo
    this.seen = seen;
  }

  pick(v) { // il pezzo scritto di cui si vedono i candidati: quello che guarda, o l'ultimo che si è scelto
    const at = focused(v);
    if (v.state.k !== ENCODER && at && at.query !== null) [this.picked] = this.piecesOf("query", at.query);
  }

  piecesOf(side, n) { // i pezzi di una riga o di una colonna del visore: uno, o quelli di una parola
    const { state } = this.viewer, { index, pieces } = this.result.maps[state.k][side];
    return range(pieces.length).filter((i) => (state.words ? index[i] : i) === n);
  }

  refresh() {
    this.drawChoices();
    const { text, m, open, translation } = this.result, other = m !== this.m && ` (${this.data.models[m].name})`;
    const before = (other || same(text) !== same(this.asked)) && html("p", { class: "titolo" }, "Traduzione di «", html("i", { lang: this.from }, text), "»", other, ":");
    fill(this.answer, [before, html("p", { class: "traduzione", lang: this.to, dir: "auto" }, translation + (open ? " …" : "")), this.drawTools()]);
    this.drawSteps();
  }

  drawSteps() { // ciò che cambia con il pezzo che si indica
    fill(this.candidates, this.drawCandidates());
    fill(this.pieces, [this.drawRow("source", this.from, "La frase, in pezzi"), this.drawRow("written", this.to, "La traduzione, un pezzo alla volta")]);
  }

  drawChoices() {
    const options = this.data.models.map(({ name }, m) => [m, name]);
    fill(this.choices, options.length > 1 ? [choice("modello", "Modello", options, this.m, (m) => this.change(m))] : []);
  }

  // Una fila di pezzi: chi guarda ha il bordo, chi è guardato dalle teste in vista ha il fondo tanto più scuro.
  drawRow(side, lang, title) {
    const { state } = this.viewer, { kind } = this.result.maps[state.k], at = focused(this.viewer);
    const { pieces } = side === "source" ? sourceOf(this.result) : writtenOf(this.result);
    const asks = (side === "source") === (kind === "encoder"), seen = (side === "source") === (kind !== "decoder");
    const rows = at && at.query !== null ? this.piecesOf("query", at.query) : [], weights = this.seenBy(rows);
    const looked = (i) => (seen ? weights[kind === "decoder" ? i + 1 : i] ?? 0 : 0);
    const buttons = pieces.map((piece, i) => html("button", {
      type: "button", lang, class: piece.startsWith("·") ? "pezzo continua" : "pezzo", style: `--peso: ${Math.round(100 * looked(i))}%`,
      "data-chiave": `${side}${i}`, "aria-pressed": String(asks && rows.includes(i)),
      click: () => this.choosePiece(side, i, asks), pointerenter: (event) => event.pointerType === "mouse" && this.hoverPiece(i, asks, seen),
    }, piece, looked(i) >= 0.005 && html("small", {}, percent(looked(i)))));
    return html("div", {}, html("p", { class: "titolo" }, title), html("div", { class: "pezzi", dir: "auto", role: "group", "aria-label": title }, ...buttons));
  }

  seenBy(rows) { // quanto i pezzi `rows` guardano ogni chiave, in media sulle teste in vista
    const v = this.viewer, { l, heads } = opened(v), map = this.result.maps[v.state.k], matrix = rows.length ? meanMatrix(map, l, heads, false) : [];
    return rows.length ? range(map.S).map((j) => rows.reduce((sum, i) => sum + matrix[i][j], 0) / rows.length) : [];
  }

  spot(side, i) { // dove sta nel visore il pezzo i
    const { state } = this.viewer, n = state.words ? this.result.maps[state.k][side].index[i] : i;
    return { panel: 0, query: side === "query" ? n : null, key: side === "key" ? n : null };
  }

  choosePiece(side, i, asks) {
    const k = asks ? this.viewer.state.k : side === "source" ? ENCODER : CROSS;
    this.viewer.set({ k, over: null });
    this.viewer.set({ focus: this.spot("query", i), over: null });
  }

  hoverPiece(i, asks, seen) {
    if (asks || seen) this.viewer.set({ over: this.spot(asks ? "query" : "key", i) });
  }

  get twin() { // la stessa frase con l'altra parola della coppia, se c'è
    const { swap } = this.data, n = swap.findIndex((word) => new RegExp(`\\b${word}\\b`).test(this.result.text));
    const [word, other] = [swap[n], swap[1 - n]];
    return n < 0 ? null : { word, other, text: this.result.text.replace(new RegExp(`\\b${word}\\b`), other) };
  }

  drawTools() {
    const { twin } = this;
    const swap = twin && html("button", { type: "button", "data-chiave": "scambia", click: () => this.choose(twin.text) },
      "Metti ", html("i", { lang: this.from }, twin.other), " al posto di ", html("i", { lang: this.from }, twin.word));
    const on = this.off.size > 0 && html("button", { type: "button", "data-chiave": "accendi", click: () => this.undo(() => this.off.clear()) }, "Riaccendi tutte le teste");
    const free = this.prefix.length > 0 && html("button", { type: "button", "data-chiave": "libera", click: () => this.undo(() => this.release()) }, "Lascia fare al modello");
    return html("div", { class: "gruppo" }, swap, on, free);
  }

  // Il passo che si mostra se non se ne è scelto uno: quello in cui ci si separa dalla stessa frase con tutte le teste, o dalla
  // gemella, se sono fra le pronte; se no, il più incerto.
  get telling() {
    const text = ({ maps }) => maps[CROSS].queries, mine = text(this.result);
    const others = [this.off.size > 0 && this.known(this.result.text), this.twin && this.known(this.twin.text)].filter((one) => one);
    const apart = others.map((other) => mine.findIndex((piece, t) => piece !== text(other)[t])).find((t) => t >= 0);
    return apart ?? hesitation(this.result);
  }

  // I primi cinque candidati del pezzo scritto che si è scelto. Si impone un altro al posto di quello scritto, se il modello è ancora quello.
  drawCandidates() {
    const t = this.picked ?? this.telling, written = this.result.maps[CROSS].queries[t];
    const bars = this.result.candidates[t].map(([piece, probability]) => {
      const label = labelOf(piece), figure = `${decimal(100 * probability, 1)} %`, name = `scrivi «${label}» al posto di «${labelOf(written)}»: ${figure}`;
      const row = [html("span", { lang: this.to }, label), html("span", { class: "barra", style: `--lunghezza: ${100 * probability}%` }), html("span", { class: "cifra" }, figure)];
      const still = piece === written || this.result.m !== this.m;
      return html("li", { "data-scelto": String(piece === written) },
        still ? html("div", {}, ...row) : html("button", { type: "button", "aria-label": name, "data-chiave": piece, click: () => this.impose(t, piece) }, ...row));
    });
    return [html("p", { class: "titolo" }, `Passo ${t + 1}: che cosa poteva scrivere`), html("ol", {}, ...bars)];
  }

  // -------- l'indirizzo porta la frase, il modello, le teste spente e ciò che si guarda
  address(fields) {
    const { text, m } = this.result, own = { frase: text };
    if (m) own.modello = this.data.models[m].name;
    if (this.off.size) own.spente = [...this.off].join("_");
    return `#${this.data.anchor}?${new URLSearchParams({ ...own, ...fields })}`;
  }

  recall() { // vero se l'indirizzo parla di questa casella
    const fields = fieldsOf(this.data.anchor);
    if (!fields) return false;
    const m = Math.max(0, this.data.models.findIndex(({ name }) => name === fields.get("modello")));
    if (m !== this.m) Object.assign(this, { m, live: null, run: this.run + 1 });
    this.picked = this.chosen = null;
    const heads = this.ready[m][0].maps.flatMap(({ kind, N, h }) => range(N * h).map((n) => `${kind}.${Math.floor(n / h)}.${n % h}`));
    this.off = new Set((fields.get("spente") ?? "").split("_").filter((name) => heads.includes(name)));
    this.box.value = this.asked = (fields.get("frase") ?? "").trim();
    this.wanted = fromFields({ sentences: [this.ready[m][0].maps] }, this.viewer.state, fields);
    if (this.known(this.asked)) this.show(this.known(this.asked), this.wanted); // si vede subito, anche se poi serve il modello
    if (!this.result) this.drawChoices(); // il modello si sceglie anche prima di una risposta
    reveal(this.host);
    this.host.scrollIntoView();
    if (this.live) this.translate();
    else this.begin();
    return true;
  }
}

const readAnswers = (sentences) => Promise.all(sentences.map(async (one) => ({ ...one, maps: (await readMaps(one))[0] })));

async function startLive(viewerStyle, style, data) {
  const hosts = [...document.querySelectorAll(`[data-vivo="${CSS.escape(data.anchor)}"]`)].filter(reserve);
  const ready = await Promise.all(data.models.map(({ sentences }) => readAnswers(sentences))).catch((error) => {
    for (const host of hosts) host.append("Questo browser non sa mostrare il traduttore: aggiornalo.");
    throw error;
  });
  for (const host of hosts) whenNear(host, data.anchor, () => new LiveBox(host, [viewerStyle, style], data, ready).open());
}
