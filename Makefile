PYTHON ?= python3
export OMP_NUM_THREADS = 1

.PHONY: test quaderni

.venv/pronto: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -r requirements.txt
	.venv/bin/pip install -q --no-deps -e .
	touch $@

test: .venv/pronto
	.venv/bin/ruff check annotated tools tests
	.venv/bin/pytest -q tests

quaderni: .venv/pronto
	.venv/bin/python tools/quaderni.py esegui
