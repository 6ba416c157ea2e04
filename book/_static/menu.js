// Ciò che segue il tema, ciò che scorre, e i menu.

// Le figure hanno due versioni: si vede quella del tema; senza script il tema è sempre chiaro. Il suo pulsante dice qual è.
(() => {
  const page = document.documentElement, names = { light: "chiaro", dark: "scuro", auto: "come il sistema" };
  const dress = () => {
    const media = page.dataset.theme === "dark" ? "all" : "not all";
    document.querySelectorAll("picture source").forEach((source) => { source.media = media; });
    document.querySelectorAll(".theme-switch-button").forEach((button) => { button.title = `Tema: ${names[page.dataset.mode]}`; });
  };
  new MutationObserver(dress).observe(page, { attributeFilter: ["data-theme", "data-mode"] });
  dress();
})();

// Aperta la pagina, si caricano anche le figure che non si vedono ancora: chi resta senza rete, o stampa, le trova.
addEventListener("load", () => {
  document.querySelectorAll('img[loading="lazy"]').forEach((image) => { image.loading = "eager"; });
});

// Ciò che, a questa larghezza, scorre di lato si raggiunge anche da tastiera. Si misura quando si vede: tutto insieme
// fermerebbe la pagina.
(() => {
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries)
      if (isIntersecting && target.scrollWidth > target.clientWidth) target.tabIndex = 0;
  });
  document.querySelectorAll("pre, div.math, .cell_output > .output").forEach((box) => watch.observe(box));
})();
// Una figura larga scorre soltanto sul telefono: altrove non è una fermata del Tab.
if (!matchMedia("(max-width: 576px)").matches)
  document.querySelectorAll("picture.ampia").forEach((figure) => figure.removeAttribute("tabindex"));

// Copiato il codice, il fuoco torna al bottone, che lo script che copia lascia; e «Copiato!» si sente, non si vede soltanto.
{
  const said = document.createElement("p");
  said.role = "status";
  said.className = "visually-hidden";
  document.body.append(said);
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copybtn");
    if (!button) return;
    button.focus();
    said.textContent = ""; // se no, la seconda volta non cambierebbe nulla
    setTimeout(() => { said.textContent = button.dataset.tooltip; }, 100);
  });
}

// Esc chiude la ricerca anche da un risultato: lo script di Sphinx, che con Esc spegne le parole evidenziate, lo impedirebbe.
document.getElementById("pst-search-dialog")?.addEventListener("keydown", (event) => {
  if (event.key === "Escape") event.stopPropagation();
});

// L'indice della pagina, scelta una voce, si chiude, e si prosegue da lì; chi lo lascia con Esc torna al suo pulsante.
{
  const contents = document.getElementById("pst-secondary-sidebar-modal");
  contents?.addEventListener("click", (event) => { if (event.target.closest("a")) contents.close(); });
  contents?.addEventListener("keydown", (event) => {
    if (event.key === "Escape") contents.addEventListener("close", () => document.querySelector(".secondary-toggle").focus(), { once: true });
  });
}

// I menu in alto a destra: si aprono con il puntatore o da tastiera, si chiudono con Esc o toccando altrove.
for (const button of document.querySelectorAll('[data-bs-toggle="dropdown"]')) {
  const menu = button.nextElementSibling, whole = button.parentElement;
  const show = (open) => {
    menu.classList.toggle("show", open);
    button.setAttribute("aria-expanded", open);
  };
  button.addEventListener("click", () => show(!menu.classList.contains("show")));
  document.addEventListener("click", (event) => { if (!whole.contains(event.target)) show(false); });
  whole.addEventListener("focusout", (event) => { if (event.relatedTarget && !whole.contains(event.relatedTarget)) show(false); });
  whole.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.classList.contains("show")) return;
    show(false);
    button.focus();
  });
}
