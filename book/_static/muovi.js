// Le figure che si muovono. Python ha già scritto la tabella con i suoi numeri (`moving` in annotated/study/figures.py);
// qui, quando un comando si sposta, si rifanno gli stessi conti e si riscrivono le caselle. Senza questo file resta la tabella.
(() => {
  const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);
  const dot = (a, b) => sum(a.map((x, i) => x * b[i]));
  const times = (x, W) => W[0].map((_, column) => dot(x, W.map((row) => row[column])));
  function softmax(scores) {
    const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
    return powers.map((power) => power / sum(powers));
  }

  // Un conto per figura: dai numeri del quaderno e dai comandi a ciò che sta nelle caselle. L'elenco `peso` riempie
  // le caselle peso.0, peso.1, …; un elenco di elenchi, peso.0.0, peso.0.1, …
  const COUNTS = {
    temperatura({ scores }, { p }) {
      const tau = 2 ** p, scalato = scores.map((score) => score / tau), peso = softmax(scalato);
      return { tau, scalato, peso, derivata: peso.map((w) => w * (1 - w)) };
    },

    passi({ X, W_q, W_k, W_v, changes }, { chi, ...embedding }) {
      const rows = X.map((row, j) => (j === changes ? row.map((_, i) => embedding[`x${i}`]) : row));
      const query = times(rows[chi], W_q), chiave = rows.map((row) => times(row, W_k));
      const score = chiave.map((key) => dot(query, key)), scalato = score.map((s) => s / Math.sqrt(query.length));
      const peso = softmax(scalato), parte = rows.map((row, j) => times(row, W_v).map((v) => v * peso[j]));
      return { x: rows[changes], query, chiave, score, scalato, peso, parte, uscita: W_v[0].map((_, c) => sum(parte.map((v) => v[c]))) };
    },

    maschere({ scores, pad }, { riempitivo, causale, dopo }) {
      const peso = scores.map((row, t) => {
        const can = row.map((_, s) => !(riempitivo && pad[s]) && !(causale && s > t));
        const weights = softmax(dopo ? row : row.map((score, s) => (can[s] ? score : -Infinity)));
        return weights.map((w, s) => (can[s] ? w : "×"));
      });
      return { peso, somma: peso.map((row) => sum(row.filter((w) => w !== "×"))) };
    },

    staffetta({ valore }, { cieca, ...pointers }) {
      const points = valore.map((_, i) => pointers[`p${i}`]);
      const uno = points.map((to, i) => valore[i === cieca - 1 ? i : to]);
      return { punta: points, uno, due: points.map((to) => uno[to]) };
    },

    generazione({ stories }, { prima, passo }) {
      return stories[prima][Math.min(passo, stories[prima].length - 1)];
    },
  };

  const number = (x, digits) => (Number(x.toFixed(digits)) || 0).toFixed(digits).replace(".", ",").replace("-", "−");
  const bar = (x, color) => `linear-gradient(90deg, ${color}66 ${100 * x}%, transparent ${100 * x}%)`;

  function write(box, name, value) {
    if (Array.isArray(value)) return value.forEach((x, i) => write(box, `${name}.${i}`, x));
    for (const cell of box.querySelectorAll(`[data-n="${name}"]`)) {
      cell.textContent = typeof value === "string" ? value : number(value, cell.dataset.cifre);
      if (cell.dataset.colore) cell.style.background = bar(typeof value === "string" ? 0 : value, cell.dataset.colore);
    }
  }

  for (const box of document.querySelectorAll("[data-muovi]")) {
    const numbers = JSON.parse(box.dataset.numeri);
    const update = () => {
      const state = {};
      for (const control of box.elements)
        if (control.type === "checkbox") state[control.name] = control.checked;
        else if (control.type === "range" || control.checked) state[control.name] = Number(control.value);
      Object.entries(COUNTS[box.dataset.muovi](numbers, state)).forEach(([name, value]) => write(box, name, value));
      for (const shown of box.querySelectorAll("label > output")) // chi ascolta sente il valore scritto, non il posto del cursore
        shown.parentElement.querySelector("input").setAttribute("aria-valuetext", shown.textContent);
    };
    box.addEventListener("input", update);
    box.addEventListener("submit", (event) => event.preventDefault());
    box.querySelector(".comandi").hidden = false;
    update();
  }
})();
