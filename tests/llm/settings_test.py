"""Laws of an endpoint's settings: a mistake is refused with its key."""

import pytest

from slca_jax.config import build, defaults
from slca_jax.errors import ConfigError
from slca_jax.llm.settings import Endpoint, check_endpoint


@pytest.mark.parametrize(
  ('change', 'says'),
  [
    ({'concurrency': 0}, 'concurrency is 0'),
    ({'deadline': 0.0}, 'deadline is 0.0'),
    ({'retries': -1}, 'retries is -1'),
    ({'sampling': {'temperature': -1.0}}, 'temperature is -1.0'),
    ({'sampling': {'max_tokens': 0}}, 'max_tokens is 0'),
    ({'sampling': {'top_p': 0.0}}, 'top_p is 0.0'),
    ({'api_key': 'secret'}, "api_key is not a setting; did you mean 'api_key_env'"),
  ],
)
def test_setting_that_cannot_work_is_refused(change, says):
  with pytest.raises(ConfigError) as caught:
    build(Endpoint, change)
  assert says in str(caught.value)


def test_temperature_may_be_none():
  config = defaults(Endpoint)
  config.sampling.temperature = None
  assert build(Endpoint, config).sampling.temperature is None


@pytest.mark.parametrize('url', ['', 'localhost:8000', 'http://', 'http://host:port/v1', 'ftp://host/v1'])
def test_address_that_is_none_is_refused_with_its_key(url):
  with pytest.raises(ConfigError, match=r'environment\.simulator\.base_url is '):
    check_endpoint(Endpoint(base_url=url, model='m'), 'environment.simulator')
  check_endpoint(Endpoint(base_url=url, model='m'), 'environment.simulator', replay=True)


def test_model_is_always_needed():
  with pytest.raises(ConfigError, match=r'judge\.endpoint\.model is empty'):
    check_endpoint(Endpoint(base_url='http://host:1/v1'), 'judge.endpoint', replay=True)
