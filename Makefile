PYTHON ?= python3
BIN = .venv/bin
# le uscite dei quaderni si confrontano, e una somma dipende dal numero di thread
export OMP_NUM_THREADS = 1
# un quaderno è un processo: il pacchetto compilato lo trovi pronto
export PYTHONDONTWRITEBYTECODE =

.PHONY: libro test tipi quaderni base prove-pagine prove-altre

# Sphinx, interrotto mentre scrive, dimentica le figure delle pagine già scritte: quella volta si riscrivono tutte
INTERROTTO = book/_build/interrotto
libro: .venv/pronto
	$(BIN)/python tools/quaderni.py anticipa
	@if [ -e $(INTERROTTO) ]; then rm -rf book/_build/html; fi; touch $(INTERROTTO)
	$(BIN)/jupyter-book build -W -n --keep-going book
	@rm $(INTERROTTO)

# in ordine, tranne uno degli ultimi: è lungo, e un core aspetterebbe l'altro
QUADERNI = book/96_galleria.ipynb $(filter-out book/96_galleria.ipynb,$(wildcard book/*.ipynb))

# nbval esegue i quaderni, e le uscite restano per il libro (conftest.py); poi due file di cose per due core:
# il libro e le prove che ne leggono le pagine, i tipi e le altre prove
test: .venv/pronto
	$(BIN)/ruff check
	$(BIN)/ruff format --check tools tests bench book/_ext conftest.py
	$(BIN)/python tools/quaderni.py verifica
	$(BIN)/pytest -q -n 2 --no-loadscope-reorder $(QUADERNI)
	$(MAKE) -j 2 prove-pagine prove-altre

# quelle che aprono il browser, o leggono il libro; e una lunga, ché le due file finiscano insieme
PAGINE = $(patsubst %,tests/test_%.py,edizione figure_mobili pagine precisione pubblicazione quiz viewer web)
prove-pagine: libro
	$(BIN)/pytest -q -n 2 --dist worksteal $(PAGINE)

prove-altre: tipi
	$(BIN)/pytest -q $(filter-out $(PAGINE),$(wildcard tests/test_*.py))

tipi: .venv/pronto
	$(BIN)/mypy

quaderni: .venv/pronto
	$(BIN)/python tools/quaderni.py esegui

# Base dall'inglese all'italiano, da small-en-it cresciuto: vuole una GPU e i dati, puliti da tools/dati.py.
# make base DATI=cartella [PASSI=20000]; una H100 fa venti passi al secondo. Gli ultimi due quinti sono la discesa
PASSI = 20000
DISCESA = $(shell expr $(PASSI) \* 2 / 5)
QUOTIDIANO = tatoeba tatoeba_pivot cocoa_mt_train storybooks_asp shattered_pixel_dungeon fish_fillets tuxemon zelda_solarus_dx \
	a_dark_room renpy_tutorial po_wesnoth
PROGRAMMI = ddtp po_apps libreoffice_ui libreoffice_help po_edu_science mediawiki_i18n po_games inaturalist installation_guide
BASE = annotated train --data $(1) --init small-en-it --grow --max-tokens 25000 --max-steps $(PASSI) --warmup 1000 --factor 0.4 \
	--cooldown $(DISCESA) --valid-every 1000 $(QUOTIDIANO:%=--repeat %=10) $(PROGRAMMI:%=--repeat %=0.5) --compile --resume --out runs/base-cresciuto
base: .venv/pronto $(or $(wildcard $(DATI)/train-pronomi.tsv.xz),$(DATI)/train-pronomi.tsv)
	$(BIN)/$(call BASE,$(DATI))
	$(BIN)/python tools/pubblica.py runs/base-cresciuto base-en-it --data $(DATI) --command "$(call BASE,CARTELLA)"

# le frasi che insegnano di chi è «it», come nel capitolo 19
$(DATI)/train-pronomi.tsv: | .venv/pronto
	@test -f "$(DATI)/valid.tsv" || { echo "make base DATI=CARTELLA: in «$(DATI)» manca valid.tsv."; exit 1; }
	$(BIN)/python -c 'from annotated.study.pronouns import write_pronouns; write_pronouns("$@", 300_000)'

.venv/pronto: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 15) or sys.exit("Serve Python da 3.11 a 3.14: make PYTHON=python3.13 …")'
	@echo "Installo PyTorch e il resto in .venv: qualche minuto."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-compile -r requirements.txt # Python compila da sé ciò che importa: un minuto di meno
	$(BIN)/pip install -q --no-deps -e .
	touch $@
