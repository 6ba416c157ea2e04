// «Mettiti alla prova»: sceglie i capitoli, controlla le risposte, tiene il punteggio, ricomincia. Le risposte giuste e le spiegazioni sono nella pagina.
"use strict";

(() => {
  const KEY = "annotated-quiz";
  const questions = [...document.querySelectorAll(".quiz-domanda")];
  const answers = document.querySelector(".quiz-risposte");
  let first = read(); // nome della domanda → la lettera del primo tentativo

  function read() {
    try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; }
  }

  function save() {
    try { localStorage.setItem(KEY, JSON.stringify(first)); } catch { /* senza memoria si va avanti lo stesso */ }
  }

  const answer = (question) => document.getElementById(question.id.replace("domanda", "risposta"));
  const section = (question) => question.closest("section").querySelector("p[data-parte]")?.dataset.parte;

  function check(question) {
    const result = question.querySelector(".quiz-esito");
    const chosen = question.querySelector("input:checked")?.value;
    if (!chosen) return void (result.textContent = "Scegli prima una delle quattro risposte.");
    const solution = answer(question);
    const right = chosen === solution.dataset.giusta;
    question.dataset.esito = right ? "giusta" : "sbagliata";
    const verdict = document.createElement("strong");
    verdict.textContent = right ? "✓ Giusto." : "✗ Non è questa.";
    const why = solution.querySelector(`[data-opzione=${chosen}] .quiz-perche`).cloneNode(true);
    const see = solution.querySelector(".quiz-vedi").cloneNode(true);
    see.querySelector("strong").remove(); // non dire quale fosse la giusta: si può riprovare
    result.replaceChildren(verdict, " ", why, see);
    first[question.dataset.nome] ??= chosen;
    save();
    score();
  }

  function clear(question) {
    question.querySelector(".quiz-esito").replaceChildren();
    delete question.dataset.esito;
  }

  function score() {
    for (const place of document.querySelectorAll("[data-parte]")) {
      const part = place.dataset.parte;
      const own = questions.filter((question) => !question.hidden && (!part || section(question) === part));
      const tried = own.filter((question) => first[question.dataset.nome]);
      const right = tried.filter((question) => first[question.dataset.nome] === answer(question).dataset.giusta);
      place.textContent = `${right.length} su ${own.length} al primo tentativo` +
        (tried.length < own.length ? ` (risposte date: ${tried.length})` : "");
      place.hidden = false;
      if (part) place.closest("tr, section").hidden = !own.length;
    }
  }

  // le domande che chiedono soltanto i capitoli scelti, con le caselle o nell'indirizzo (?capitoli=1,2); nessuno: tutte
  const chapters = (question) => question.dataset.capitoli.split(" ");
  const choice = document.createElement("details"); // chiuso: la prima domanda è subito sotto
  choice.className = "quiz-scelta";
  choice.innerHTML = "<summary>Soltanto alcuni capitoli</summary><fieldset><legend>Solo le domande sui capitoli</legend>" +
    [...new Set(questions.flatMap(chapters))].sort((a, b) => a - b)
      .map((chapter) => `<label><input type="checkbox" value="${chapter}"> ${chapter}</label>`).join("") +
    '<p><span role="status"></span> <a>Collegamento a questa scelta, da copiare</a></p></fieldset>';
  const boxes = [...choice.querySelectorAll("input")];
  const asked = (new URLSearchParams(location.search).get("capitoli") ?? "").split(",").map(Number);
  boxes.forEach((box) => { box.checked = asked.includes(Number(box.value)); });
  choice.open = boxes.some((box) => box.checked);

  function choose() {
    const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
    for (const question of questions) {
      question.hidden = chosen.length > 0 && !chapters(question).every((chapter) => chosen.includes(chapter));
      answer(question).hidden = question.hidden;
    }
    const shown = questions.filter((question) => !question.hidden).length;
    choice.querySelector("[role=status]").textContent = chosen.length
      ? `Domande che chiedono soltanto questi capitoli: ${shown} su ${questions.length}.${shown ? "" : " Aggiungi un capitolo."}`
      : `Nessuna casella: tutte le ${questions.length} domande.`;
    const link = choice.querySelector("a");
    link.hidden = !chosen.length;
    link.href = chosen.length ? `?capitoli=${chosen}` : location.pathname;
    score();
    return link.href;
  }

  choice.addEventListener("change", () => history.replaceState(null, "", choose())); // anche ricaricando la pagina

  function button(text, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "quiz-tasto";
    made.textContent = text;
    made.addEventListener("click", action);
    return made;
  }

  for (const question of questions) {
    question.querySelector(".quiz-esito").before(button("Controlla", () => check(question)));
    question.addEventListener("change", () => clear(question));
    question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.matches("input")) check(question);
    });
  }

  const table = document.querySelector(".quiz-tabella");
  const said = document.createElement("p");
  said.setAttribute("role", "status");
  const restart = button("Ricomincia da capo", () => {
    first = {};
    save();
    for (const question of questions) {
      clear(question);
      question.querySelectorAll("input").forEach((input) => { input.checked = false; });
    }
    score();
    said.textContent = "Risposte e punteggio cancellati: puoi ricominciare dalla prima domanda.";
  });
  table.after(restart, said);
  table.hidden = false;
  questions[0].closest("section").before(choice);
  choose();

  for (const question of questions) { // le risposte date prima di ricaricare
    const radio = question.querySelector(`input[value="${first[question.dataset.nome]}"]`);
    if (radio) { radio.checked = true; check(question); }
  }

  // in stampa le risposte sono aperte
  let open = answers.open;
  window.addEventListener("beforeprint", () => { open = answers.open; answers.open = true; });
  window.addEventListener("afterprint", () => { answers.open = open; });
})();
