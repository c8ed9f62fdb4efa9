"""What several tests of engines share."""

import pytest
from sglang_stand_in import StandIn


@pytest.fixture
def servers():
  """Makes stand-ins, and ends them with the test."""
  made = []

  def make(**options):
    made.append(StandIn(**options))
    return made[-1]

  yield make
  for server in made:
    if not server.dead:
      server.kill()
