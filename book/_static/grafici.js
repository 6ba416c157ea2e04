// Il programma che anima i grafici pesa quasi un megabyte: si carica quando il primo sta per vedersi, fin lì c'è il disegno fermo.
(() => {
  let loading;
  const load = () => (loading ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${document.documentElement.dataset.content_root}_static/vega-bundle.js`;
    script.onload = done;
    script.onerror = () => { script.remove(); loading = undefined; }; // senza rete resta il disegno fermo; il prossimo grafico riprova
    document.head.append(script);
  }));
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      watch.unobserve(target);
      load().then(() => disegnaGrafico(target));
    }
  }, { rootMargin: "300px" });
  document.querySelectorAll(".vega-lite").forEach((chart) => watch.observe(chart));
})();
