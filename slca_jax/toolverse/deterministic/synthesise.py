"""From the tools of a server to a blueprint, or the reasons why there is none."""

import dataclasses
import re

from slca_jax.config import require
from slca_jax.toolverse import blueprint as blueprints
from slca_jax.toolverse.blueprint import Blueprint
from slca_jax.toolverse.deterministic.checks import tests_of
from slca_jax.toolverse.deterministic.code import source_of
from slca_jax.toolverse.deterministic.dealing import Deal
from slca_jax.toolverse.deterministic.planning import plan
from slca_jax.toolverse.deterministic.records import present_enums, seed_database
from slca_jax.toolverse.outcome import Outcome
from slca_jax.toolverse.schemas import ToolSet

MAKER = 'deterministic 2'


@dataclasses.dataclass(frozen=True, slots=True)
class DeterministicSettings:
  """How environments are built without a model.

  Attributes:
    records: of a table that hangs on no other.
    least_tools: a server with fewer that can be understood is dropped.
    most_parameters: of a rewritten tool, beside its required ones.
    seed: of the records.
  """

  records: int = 5
  least_tools: int = 2
  most_parameters: int = 4
  seed: int = 0

  def __post_init__(self):
    require(3 <= self.records <= 100, f'records is {self.records}; it lies between 3 and 100')
    require(self.least_tools >= 1, f'least_tools is {self.least_tools}; it is at least 1')
    require(self.most_parameters >= 1, f'most_parameters is {self.most_parameters}; it is at least 1')


def synthesise(tools: ToolSet, settings: DeterministicSettings | None = None) -> Outcome:
  """The environment of a server, the same for equal schemas and settings; strange schemas are reasons, no errors."""
  settings = settings or DeterministicSettings()
  found = plan(tools.tools, most_parameters=settings.most_parameters)
  if len(found.operations) < settings.least_tools:
    reason = (
      f'{len(found.operations)} of {len(tools.tools)} tools can be understood; least_tools is {settings.least_tools}'
    )
    return Outcome(tools.name, None, reason, found.left_out)
  deal = Deal(f'{settings.seed}/{tools.name}')
  database = seed_database(found, deal, records=settings.records)
  found = present_enums(found, database)
  made = Blueprint(
    name=slug(tools.name),
    tools=tuple(operation.tool for operation in found.operations),
    source=source_of(found, database, title=f'Tools of {tools.name} over a dictionary database.'),
    database=database,
    tests=tests_of(found, database, deal),
    provenance={
      'maker': MAKER, 'server': tools.name, 'origin': tools.origin, 'licence': tools.licence, 'seed': settings.seed,
      'left_out': dict(found.left_out),
    },
  )  # fmt: skip
  faults = blueprints.faults(made)
  if faults:
    return Outcome(tools.name, None, f'it is not sound: {faults[0]}', found.left_out)
  return Outcome(tools.name, made, '', found.left_out)


def slug(name: str) -> str:
  """A name for a folder: letters, digits and single dashes."""
  return re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'environment'
