PYTHON ?= python3
BIN = .venv/bin
# le uscite dei quaderni si confrontano, e una somma dipende dal numero di thread
export OMP_NUM_THREADS = 1

.PHONY: libro test quaderni

libro: .venv/pronto
	$(BIN)/jupyter-book build -W -n --keep-going book

test: libro
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python tools/quaderni.py verifica
	$(BIN)/pytest -q -n 2

quaderni: .venv/pronto
	$(BIN)/python tools/quaderni.py esegui

.venv/pronto: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r requirements.txt
	$(BIN)/pip install -q --no-deps -e .
	touch $@
