"""Searches: one way to choose trials, one file."""

from isthmus.config.registry import FAMILIES, Family
from isthmus.tune.search import Search
from isthmus.tune.searches.asha import Asha
from isthmus.tune.searches.bohb import Bohb
from isthmus.tune.searches.grid import Grid
from isthmus.tune.searches.halving import SuccessiveHalving
from isthmus.tune.searches.hyperband import Hyperband
from isthmus.tune.searches.model_based import Gp, Nsga2, Tpe
from isthmus.tune.searches.population import PopulationBased
from isthmus.tune.searches.racing import Racing
from isthmus.tune.searches.random_search import RandomSearch

SEARCHES: dict[str, type[Search]] = {
    "random": RandomSearch,
    "grid": Grid,
    "sha": SuccessiveHalving,
    "hyperband": Hyperband,
    "asha": Asha,
    "bohb": Bohb,
    "tpe": Tpe,
    "gp": Gp,
    "nsga2": Nsga2,
    "pbt": PopulationBased,
    "racing": Racing,
}
# Searches stand above what builds parts from names, so their table is handed down.
FAMILIES[Search] = Family("searches", SEARCHES)

__all__ = [
    "SEARCHES",
    "Asha",
    "Bohb",
    "Gp",
    "Grid",
    "Hyperband",
    "Nsga2",
    "PopulationBased",
    "Racing",
    "RandomSearch",
    "SuccessiveHalving",
    "Tpe",
]
