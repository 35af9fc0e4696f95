# Everything a person needs: each target does its own set-up; a second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow check format lint types install clean

demo: $(READY)
	$(BIN)/isthmus run --baselines

test: $(READY)
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: $(READY)

# Only files whose hashes are in locked/ are taken (what builds packages comes first, and nothing is fetched to build with),
# but for torch, which is pinned by version. Where locked/ has no hash for a Python or a platform, `make install LOCKED=no`
# goes by the versions in constraints.txt alone.
LOCKED ?= yes
EXTRAS := dev,sinks,sites,molecules,communities,sql,charts,cluster,privacy,tuning,psi
PIP := $(BIN)/python -m pip install --quiet
$(READY): pyproject.toml constraints.txt $(wildcard locked/*.txt)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(LOCKED),yes)
	$(PIP) --require-hashes --no-deps -r locked/build.txt
	$(PIP) --require-hashes --no-deps --no-build-isolation -r locked/packages.txt
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
else
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[$(EXTRAS)]'
endif
	touch $(READY)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
