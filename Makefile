# The two commands of the README. Both build .venv first; nothing else needs to be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and commands start many processes, each of which would compile all files again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-thorough check crash federation-faults fuzz mutants bench bench-peers utility pictures docs clean

# A federation on which nothing was chosen, and the same rule for all methods: validation rows choose
# a setting out of the grid.
DEMO := synthetic:clients=400,features=8,classes=3,alpha=0.2,beta=0.3,seed=1
demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/pmtl compare --data $(DEMO) --algorithm pooling --algorithm pmtl --algorithm ditto \
	  --algorithm fedavg --algorithm local --grid lr=0.1,0.3,1 --grid pmtl:lam=0.03,0.3 \
	  --grid ditto:lam=0.03,0.3 --jobs 2 --out runs/demo

# Three processes for two cores, because some tests wait for other processes.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal
test: check
	$(PYTEST) -m "not thorough"

# Long repetitions of what tests of `make test` show on other cases.
test-thorough: $(STAMP)
	$(PYTEST) -m thorough

# The long version of the kill -9 test: CAMPAIGNS runs of twelve kills each.
CAMPAIGNS ?= 20
crash: $(STAMP)
	$(BIN)/python tests/programs/campaign.py $(CAMPAIGNS)

# Processes of a federation that are killed, frozen, cut off, full or lie; a quarter of an hour. Full
# disks need the right to mount a tmpfs, and wrong clocks a C compiler: they are skipped without.
federation-faults: $(STAMP)
	$(BIN)/python -m pytest -p no:xdist -rs --durations=0 tests/federation/nvflare/faults*.py

# The fuzzing tests with FUZZ times as many inputs, others each time, and a count of them.
FUZZ ?= 20
fuzz: $(STAMP)
	PMTL_FUZZ=$(FUZZ) $(BIN)/python -m pytest $$(find tests -name "test_*_fuzz.py")

# Break the privacy-relevant code on purpose, one line at a time: which test notices?
mutants: $(STAMP)
	$(BIN)/python tests/mutants.py

# What docs/benchmarks.md, scale.md and privacy.md show of this machine; leave it alone meanwhile.
bench: $(STAMP)
	$(BIN)/python benchmarks/engines.py --json benchmarks/results/engines-cpu.json
	$(BIN)/python benchmarks/convolutions.py --json benchmarks/results/convolutions-cpu.json
	$(BIN)/python benchmarks/noise.py --json benchmarks/results/noise.json
	$(BIN)/python benchmarks/production.py --json benchmarks/results/production-cpu.json
	$(BIN)/python benchmarks/end_to_end.py --json benchmarks/results/end-to-end.json
	$(BIN)/python benchmarks/linear_models.py --json benchmarks/results/linear-models.json
	$(BIN)/python benchmarks/scaling.py --json benchmarks/results/scaling.json
	$(BIN)/python benchmarks/tables.py --write

# The same rounds in pmtl, pfl-research, Flower and FedJAX, each installed into an environment of its
# own first (gigabytes, minutes): benchmarks/peers/README.md.
bench-peers: $(STAMP)
	$(BIN)/python benchmarks/peers/run.py

# What sharing is worth on real and synthetic federations, and docs/utility.md; half an hour.
utility: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[utility]"
	$(BIN)/python benchmarks/utility/run.py
	$(BIN)/python benchmarks/utility/page.py
	$(BIN)/python website/figures.py

# The site of the documentation, in site/. Search needs a server: python -m http.server -d site.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python website/figures.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pictures of docs/report.md, taken in chromium.
pictures: $(STAMP)
	$(BIN)/python website/pictures.py

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23.2" -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) benchmarks/peers/.environments build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
