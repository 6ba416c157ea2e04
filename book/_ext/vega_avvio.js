const options = {
  actions: { export: true, source: false, compiled: false, editor: false },
  i18n: { CLICK_TO_VIEW_ACTIONS: "Altre azioni", PNG_ACTION: "Salva come PNG", SVG_ACTION: "Salva come SVG" },
  formatLocale: { decimal: ",", thousands: ".", grouping: [3], currency: ["€", ""] },
  renderer: "svg",
};
window.disegnaGrafico = (target) => {
  const script = document.querySelector(`script.vega-lite-spec[data-target="${target.id}"]`);
  const downloadFileName = target.closest("figure[id], section[id]").id; // il nome del file che il menu salva
  vegaEmbed(target, JSON.parse(script.textContent), { ...options, downloadFileName }).then(() => { comma(target); label(target); }).catch((error) => {
    target.textContent = String(error);
  });
};
// il pulsante del menu ha solo un disegno: gli si dà il nome che ha il menu
function label(target) {
  target.querySelector("summary")?.setAttribute("aria-label", options.i18n.CLICK_TO_VIEW_ACTIONS);
}
// il valore accanto a un cursore lo scrive Vega, sempre con il punto
function comma(target) {
  for (const value of target.querySelectorAll(".vega-bind input[type=range] + *")) {
    new MutationObserver(() => {
      if (value.textContent.includes(".")) value.textContent = value.textContent.replace(".", ",");
    }).observe(value, { childList: true, characterData: true, subtree: true });
  }
}
