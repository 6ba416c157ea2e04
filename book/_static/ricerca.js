// La ricerca: carica l'indice (ricerca-indice.js) quando si tocca la casella, e ordina sezioni e voci del glossario.
(() => {
  const root = document.documentElement.dataset.content_root;
  const plain = (text) => text.toLowerCase().normalize("NFD").replace(/[\u0300-\u036f]/g, "").replace(/’/g, "'");
  const tokens = (text) => plain(text).match(/[\p{L}\p{N}_]+/gu) ?? [];
  const stem = (word) => (word.length > 4 ? word.replace(/(?:ies|(?<!s)s|[aeio]{1,2})$/, "") : word); // testa, teste; query, queries
  const pattern = (word) => `(?<![\\p{L}\\p{N}_])${stem(word)}\\p{L}{0,${word.length > 4 ? 3 : 0}}(?![\\p{L}\\p{N}_])`;
  let pages, entries, asked;

  window.indiceDelLibro = ([p, e]) => {
    pages = p;
    entries = e.map(([page, anchor, title, text, names, born]) => ({
      page, anchor, title, text, term: anchor.startsWith("term-"),
      where: plain(pages[page][1]), head: plain(title), body: plain(text), code: plain(names), born: plain(born),
    }));
    asked.forEach((show) => show());
  };

  function load(show) {
    if (entries) return show();
    if (asked) return void asked.add(show);
    asked = new Set([show]);
    const script = document.createElement("script");
    script.src = `${root}_static/ricerca-indice.js`;
    script.onerror = () => { // senza rete: lo si dice, e alla prossima lettera si riprova
      script.remove();
      const waiting = asked;
      asked = undefined;
      waiting.forEach((show) => show());
    };
    document.head.append(script);
  }

  // quanto una voce risponde: conta dove sta la parola (titolo, termine nato lì, codice, testo) e quanto è rara
  function search(query) {
    const words = [...new Set(tokens(query))];
    if (!words.length) return [];
    const wanted = plain(query).trim(), singular = wanted.replace(/ies$/, "y").replace(/(?<!s)s$/, "");
    const exact = words.join("[^\\p{L}\\p{N}]+");
    const phrase = new RegExp(`(?<![\\p{L}\\p{N}])${exact}(?![\\p{L}\\p{N}])`, "gu");
    const rules = words.map((word) => new RegExp(pattern(word), "gu"));
    const count = (text, rule) => (text.match(rule) ?? []).length;
    const hits = rules.map((rule) => entries.map((e) => ({
      head: count(e.head, rule), where: count(e.where, rule), born: count(e.born, rule), code: count(e.code, rule), body: count(e.body, rule),
    })));
    const rare = hits.map((column) => Math.log(1 + entries.length / (1 + column.filter((h) => h.head + h.born + h.code + h.body).length)));
    const scored = entries.map((e, i) => {
      let score = 0, found = 0;
      hits.forEach((column, k) => {
        const h = column[i], own = h.head + h.born + h.code + h.body;
        found += own + h.where > 0;
        const often = h.body / (h.body + 1 + e.body.length / 1500);
        score += rare[k] * (4 * Math.min(h.head, 1) + 3 * Math.min(h.born, 1) + 3 * Math.min(h.code, 1) + Math.min(h.where, 1) + 2 * often);
      });
      const whole = Math.min(count(e.body, phrase), 5);
      score += 5 * Math.min(count(e.head, phrase), 1) + 4 * Math.min(count(e.born, phrase), 1) + (words.length > 1 ? whole / 2 : 0);
      if (e.term && e.head.split(/[(),]/).some((name) => [wanted, singular].includes(name.trim()))) score += 100;
      return { ...e, score, found };
    });
    const most = Math.max(...scored.map((e) => e.found));
    return scored.filter((e) => e.found === most && most && e.score > 0).sort((a, b) => b.score - a.score);
  }

  function excerpt(entry, query) {
    const rule = new RegExp(tokens(query).map(pattern).join("|"), "gu");
    const at = Math.max(entry.body.search(rule), 0), from = at < 70 ? 0 : entry.text.indexOf(" ", at - 60) + 1;
    const shown = entry.text.slice(from, from + 180);
    const line = document.createElement("p");
    if (from) line.append("… ");
    let end = 0;
    // normalize("NFD") può cambiare le posizioni: si evidenzia solo dove le due scritture hanno la stessa lunghezza
    const simple = entry.body.length === entry.text.length ? plain(shown) : "";
    for (const found of simple.matchAll(rule)) {
      const mark = document.createElement("mark");
      mark.textContent = shown.slice(found.index, found.index + found[0].length);
      line.append(shown.slice(end, found.index), mark);
      end = found.index + found[0].length;
    }
    line.append(shown.slice(end), from + 180 < entry.text.length ? " …" : "");
    return line;
  }

  function item(entry, query) {
    const [address, page] = pages[entry.page];
    const link = document.createElement("a");
    link.href = `${root}${address}?highlight=${encodeURIComponent(query)}${entry.anchor ? `#${entry.anchor}` : ""}`;
    link.textContent = entry.title || page;
    const place = document.createElement("span");
    place.textContent = entry.term ? "glossario" : entry.anchor ? page : "";
    const li = document.createElement("li");
    li.append(link, " ", place, excerpt(entry, query));
    return li;
  }

  function attach(form) {
    const input = form.querySelector("input"), long = !form.closest("dialog");
    const status = document.createElement("p"), list = document.createElement("ol");
    status.setAttribute("role", "status");
    const box = document.createElement("div");
    box.className = "trovati";
    box.append(status, list);
    form.after(box);
    const show = () => {
      const query = input.value.trim(), found = entries && query.length > 1 ? search(query) : [];
      const per = {}; // nel riquadro al più tre sezioni per pagina, e ogni voce del glossario conta per sé
      const kept = found.filter((e) => long || e.term || (per[e.page] = (per[e.page] ?? 0) + 1) <= 3).slice(0, long ? 100 : 8);
      list.replaceChildren(...kept.map((e) => item(e, query)));
      status.textContent = query.length < 2 ? "" : !entries ? "L'indice della ricerca non si carica: riprova quando c'è la rete." : !found.length ? "Nessun risultato." : found.length === 1 ? "Un risultato." : `${found.length} risultati${kept.length < found.length ? `: eccone ${kept.length}` : ""}.`;
    };
    input.addEventListener("focus", () => load(show), { once: true });
    input.addEventListener("input", () => load(show));
    if (long) {
      input.value = new URLSearchParams(location.search).get("q") ?? "";
      input.focus();
      load(show);
    }
  }
  document.querySelectorAll("form.bd-search").forEach(attach);
})();
