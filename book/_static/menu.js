// Ciò che segue il tema, ciò che scorre, e i menu.

// Le figure hanno due versioni: si vede quella del tema; senza script il tema è sempre chiaro.
(() => {
  const dress = () => {
    const media = document.documentElement.dataset.theme === "dark" ? "all" : "not all";
    document.querySelectorAll("picture source").forEach((source) => { source.media = media; });
  };
  new MutationObserver(dress).observe(document.documentElement, { attributeFilter: ["data-theme"] });
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
  document.querySelectorAll("pre, .cell_output > .output").forEach((box) => watch.observe(box));
})();

// L'indice della pagina, scelta una voce, si chiude.
document.getElementById("pst-secondary-sidebar-modal")?.addEventListener("click", (event) => {
  if (event.target.closest("a")) event.currentTarget.close();
});

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
