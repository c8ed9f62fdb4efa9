"""The scripts of launch/: what they run, what they pass on, and when they say that a run is to be started again."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import string
import subprocess
import sys

import jsonschema
import pytest
import yaml
from ports import free_port

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / 'launch'
SCRIPTS = sorted([*LAUNCH.glob('*.sh'), LAUNCH / 'slurm.sbatch'])
AGAIN = 75


def start(*command, **environment):
  """A process whose output is read line by line."""
  return subprocess.Popen(
    ['bash', *map(str, command)], cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True
  )


def outcome(*command, **environment):
  """(exit code, lines) of a command that ends by itself."""
  process = start(*command, **environment)
  text, _ = process.communicate(timeout=120)
  return process.returncode, text.splitlines()


@pytest.fixture
def trainer(tmp_path):
  """A program that counts its starts, saves where it is told to stop, and writes a result at its third step."""
  path = tmp_path / 'trainer.sh'
  path.write_text(
    """#!/usr/bin/env bash
output=$1 step=$(cat "$1/step" 2>/dev/null || echo 0)
trap 'echo saved; echo "$step" > "$output/step"; exit 0' TERM
echo "at $step"
[ "$step" -lt 2 ] || { echo '{}' > "$output/result.json"; exit 0; }
step=$((step + 1))
echo training
while :; do sleep 0.1; done
""",
    encoding='utf-8',
  )
  return path


def read_until(process, line):
  """The lines up to one; the process has got there then."""
  seen = []
  while not seen or seen[-1] != line:
    text = process.stdout.readline()
    assert text, f'ended after {seen}'
    seen.append(text.strip())
  return seen


def shellcheck():
  return shutil.which('shellcheck') or shutil.which('shellcheck', path=str(pathlib.Path(sys.executable).parent))


@pytest.mark.skipif(shellcheck() is None, reason="shellcheck is not installed; pip install -e '.[test]'")
@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script):
  found = subprocess.run([shellcheck(), '-x', '-s', 'bash', script], cwd=ROOT, capture_output=True, text=True)
  assert found.returncode == 0, found.stdout


def test_a_run_that_is_stopped_saves_and_the_same_command_resumes(tmp_path, trainer):
  command = 'launch/resume.sh', tmp_path, 'bash', trainer, tmp_path
  for step in (0, 1):
    process = start(*command)
    assert read_until(process, 'training') == [f'at {step}', 'training']
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline().strip() == 'saved'
    assert process.wait(timeout=60) == AGAIN
  assert outcome(*command) == (0, ['at 2'])


def test_a_run_that_others_stopped_is_to_be_started_again(tmp_path):
  assert outcome('launch/resume.sh', tmp_path, 'true') == (AGAIN, [])


@pytest.mark.parametrize('script', ['resume.sh', 'local_pod.sh', 'gpu.sh'])
def test_a_script_without_its_command_says_how_it_is_used(script):
  done = subprocess.run(['bash', LAUNCH / script, '2'], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode and f'usage: {script} ' in done.stderr


@pytest.mark.parametrize(('restarts', 'starts'), [('0', 1), ('2', 3)])
def test_a_run_that_fails_is_started_again_so_often(tmp_path, restarts, starts):
  code, lines = outcome('launch/resume.sh', tmp_path, 'bash', '-c', 'echo start; exit 3', RESTARTS=restarts, PAUSE='0')
  assert (code, lines) == (3, ['start'] * starts)


def test_an_old_result_does_not_hide_a_failure(tmp_path):
  (tmp_path / 'result.json').write_text('{}')
  assert outcome('launch/resume.sh', tmp_path, 'bash', '-c', 'exit 3')[0] == 3
  assert outcome('launch/resume.sh', tmp_path, 'true')[0] == 0


def test_processes_of_a_local_pod_know_which_they_are():
  code, lines = outcome('launch/local_pod.sh', '3', 'echo', 'run', PORT='1234')
  assert code == 0
  assert sorted(lines) == [f'run --coordinator=127.0.0.1:1234 --processes=3 --process={i}' for i in range(3)]


def test_a_local_pod_ends_with_the_worst_exit_code():
  which = 'exit "${3#--process=}"'
  assert outcome('launch/local_pod.sh', '3', 'bash', '-c', which, 'name')[0] == 2


def test_a_signal_reaches_all_processes_of_a_local_pod(tmp_path, trainer):
  for i in range(2):
    (tmp_path / str(i)).mkdir()
  wrapped = f'i="${{3#--process=}}"; exec bash launch/resume.sh {tmp_path}/$i bash {trainer} {tmp_path}/$i'
  process = start('launch/local_pod.sh', '2', 'bash', '-c', wrapped, 'name')
  seen = []
  while seen.count('training') < 2:
    seen.append(process.stdout.readline().strip())
  process.send_signal(signal.SIGTERM)
  assert process.stdout.read().split() == ['saved', 'saved']
  assert process.wait(timeout=60) == AGAIN


def test_two_local_processes_meet(tmp_path):
  program = tmp_path / 'meet.py'
  program.write_text(
    """
import pathlib
import sys
sys.path.insert(0, 'launch')
from absl import app
from multihost import joined

def main(_):
  with joined() as first:
    import jax
    from jax.experimental import multihost_utils
    me = jax.process_index()
    brought = multihost_utils.process_allgather(jax.numpy.array([me + 1]))
    found = pathlib.Path(__file__).with_name(f'{me}.txt')  # gloo's words may fall into a line that is printed
    found.write_text(f'{first} {jax.process_count()} {jax.device_count()} {brought.sum()}')

app.run(main)
""",
    encoding='utf-8',
  )
  environment = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'JAX_NUM_CPU_DEVICES': '2', 'PORT': str(free_port())}
  code, _ = outcome('launch/local_pod.sh', '2', sys.executable, program, **environment)
  assert code == 0
  assert [(tmp_path / f'{i}.txt').read_text() for i in range(2)] == ['True 2 4 3', 'False 2 4 3']


def dry(*arguments, **environment):
  """The commands that tpu_pod.sh would run, as lists of words."""
  code, lines = outcome('launch/tpu_pod.sh', '--dry-run', *arguments, ZONE='somewhere', NAME='pod', **environment)
  assert code == 0
  return [shlex.split(line) for line in lines]


RUN = ('/runs/a', 'launch/train_rl.py', '--config=configs/rl.py:slca', '--config.model.path=with a space')


def test_a_pod_starts_the_run_on_all_hosts_with_its_arguments_intact():
  (command,) = dry('run', *RUN)
  assert command[:5] == ['gcloud', 'compute', 'tpus', 'tpu-vm', 'ssh']
  assert '--worker=all' in command
  (remote,) = (word.removeprefix('--command=') for word in command if word.startswith('--command='))
  words = shlex.split(re.search(r'nohup (.*) >> run.log', remote)[1])
  start_at = words.index('bash')
  assert words[start_at:] == [
    *('bash', 'launch/resume.sh', '/runs/a', '.venv/bin/python', 'launch/train_rl.py', *RUN[2:]),
    *('--coordinator=auto', '--config.output=/runs/a'),
  ]
  assert 'RESTARTS=20' in words[:start_at]


@pytest.mark.parametrize(
  ('state', 'steps'),
  [
    ('READY', ['ssh', 'ssh']),
    ('GONE', ['create', 'scp', 'ssh', 'ssh']),
    ('PREEMPTED', ['delete', 'create', 'scp', 'ssh', 'ssh']),
  ],
)
def test_one_command_restarts_whatever_has_died(state, steps):
  found = [command[4] for command in dry('restart', *RUN, STATE=state) if command[0] == 'gcloud']
  assert found == steps


def test_a_spot_slice_is_asked_for_by_name():
  assert '--spot' in dry('create', SPOT='yes')[0]
  assert '--spot' not in dry('create')[0]


def test_what_is_not_committed_is_said_not_to_reach_a_pod(tmp_path):
  shutil.copytree(LAUNCH, tmp_path / 'launch')
  subprocess.run(['git', 'init', '--quiet'], cwd=tmp_path, check=True)
  command = ['bash', 'launch/tpu_pod.sh', '--dry-run', 'setup']
  found = subprocess.run(command, cwd=tmp_path, env=os.environ | {'ZONE': 'z'}, capture_output=True, text=True)
  assert 'not committed, so not copied:\n?? launch/' in found.stderr and 'git archive' in found.stdout


def test_a_pod_without_a_zone_is_refused():
  environment = {name: value for name, value in os.environ.items() if name != 'ZONE'}
  found = subprocess.run(
    ['bash', 'launch/tpu_pod.sh', 'create'], cwd=ROOT, env=environment, capture_output=True, text=True
  )
  assert found.returncode != 0 and 'ZONE' in found.stderr


def test_the_scripts_set_the_option_that_the_planner_compiles_with():
  from slca_jax.train.chips import TPU_OPTIONS

  for name, value in TPU_OPTIONS.items():
    for script in ('tpu_pod.sh', 'gke_jobset.yaml'):
      assert f'--{name}={value}' in (LAUNCH / script).read_text('utf-8')


def test_gpus_are_chosen_and_the_output_is_said_once(tmp_path):
  code, lines = outcome('launch/gpu.sh', tmp_path, 'program.py', '--config=c', PYTHON='echo', GPUS='2,3', RESTARTS='0')
  assert (code, lines) == (AGAIN, [f'program.py --config=c --config.output={tmp_path}'])


@pytest.mark.parametrize('finished', [True, False], ids=['finished', 'stopped'])
def test_a_slurm_job_goes_back_into_the_queue_until_it_is_complete(tmp_path, finished):
  tools = tmp_path / 'bin'
  tools.mkdir()
  (tools / 'srun').write_text('#!/bin/bash\nshift\n"$@"\n')
  (tools / 'scontrol').write_text('#!/bin/bash\necho scontrol "$@"\n')
  for tool in tools.iterdir():
    tool.chmod(0o755)
  if finished:
    (tmp_path / 'result.json').write_text('{}')
  environment = {'PATH': f'{tools}:{os.environ["PATH"]}', 'SLURM_JOB_ID': '7', 'PYTHON': 'echo'}
  code, lines = outcome('launch/slurm.sbatch', tmp_path, 'program.py', '--config=c', **environment)
  ran = f'program.py --config=c --coordinator=auto --config.output={tmp_path}'
  assert (code, lines) == ((0, [ran]) if finished else (AGAIN, [ran, 'scontrol requeue 7']))


TEXT = {'type': 'string', 'minLength': 1}
COUNT = {'type': 'integer', 'minimum': 1}
CONTAINER = {
  'type': 'object',
  'required': ['name', 'image', 'command', 'resources'],
  'additionalProperties': False,
  'properties': {
    'name': TEXT,
    'image': TEXT,
    'command': {'type': 'array', 'items': TEXT},
    'env': {
      'type': 'array',
      'items': {'type': 'object', 'required': ['name', 'value'], 'properties': {'name': TEXT, 'value': TEXT}},
    },
    'ports': {'type': 'array', 'items': {'type': 'object', 'required': ['containerPort']}},
    'resources': {
      'type': 'object',
      'required': ['limits'],
      'properties': {'limits': {'type': 'object', 'required': ['google.com/tpu'], 'additionalProperties': TEXT}},
    },
    'volumeMounts': {'type': 'array', 'items': {'type': 'object', 'required': ['name', 'mountPath']}},
  },
}
POD = {
  'type': 'object',
  'required': ['restartPolicy', 'nodeSelector', 'containers', 'volumes'],
  'additionalProperties': False,
  'properties': {
    'restartPolicy': {'const': 'Never'},
    'terminationGracePeriodSeconds': COUNT,
    'nodeSelector': {'type': 'object', 'additionalProperties': TEXT},
    'containers': {'type': 'array', 'minItems': 1, 'items': CONTAINER},
    'volumes': {'type': 'array', 'items': {'type': 'object', 'required': ['name', 'persistentVolumeClaim']}},
  },
}
JOB = {
  'type': 'object',
  'required': ['completionMode', 'parallelism', 'completions', 'backoffLimit', 'template'],
  'additionalProperties': False,
  'properties': {
    'completionMode': {'const': 'Indexed'},
    'parallelism': COUNT,
    'completions': COUNT,
    'backoffLimit': {'const': 0},
    'template': {'type': 'object', 'required': ['spec'], 'properties': {'spec': POD}},
  },
}
JOBSET = {
  'type': 'object',
  'required': ['apiVersion', 'kind', 'metadata', 'spec'],
  'additionalProperties': False,
  'properties': {
    'apiVersion': {'const': 'jobset.x-k8s.io/v1alpha2'},
    'kind': {'const': 'JobSet'},
    'metadata': {'type': 'object', 'required': ['name'], 'properties': {'name': {'pattern': '^[a-z0-9-]{1,50}$'}}},
    'spec': {
      'type': 'object',
      'required': ['replicatedJobs', 'failurePolicy'],
      'additionalProperties': False,
      'properties': {
        'failurePolicy': {'type': 'object', 'required': ['maxRestarts'], 'properties': {'maxRestarts': COUNT}},
        'replicatedJobs': {
          'type': 'array',
          'minItems': 1,
          'items': {
            'type': 'object',
            'required': ['name', 'replicas', 'template'],
            'additionalProperties': False,
            'properties': {
              'name': TEXT,
              'replicas': COUNT,
              'template': {'type': 'object', 'required': ['spec'], 'properties': {'spec': JOB}},
            },
          },
        },
      },
    },
  },
}


@pytest.fixture(scope='module')
def jobset():
  """The manifest with its variables as its own header fills them in."""
  text = (LAUNCH / 'gke_jobset.yaml').read_text('utf-8')
  header = ' '.join(line.strip('#\\ ') for line in text.splitlines() if line.startswith('#'))
  values = dict(re.findall(r'\b([A-Z]+)=(\S+)', header))
  return yaml.safe_load(string.Template(text).substitute(values | {'IMAGE': 'trainer:1'}))


def test_the_jobset_holds_what_the_api_asks_for(jobset):
  jsonschema.validate(jobset, JOBSET)


def test_the_jobset_runs_a_program_that_is_there_through_the_script_that_resumes(jobset):
  (job,) = jobset['spec']['replicatedJobs']
  (container,) = job['template']['spec']['template']['spec']['containers']
  command = container['command']
  assert command[:2] == ['bash', 'launch/resume.sh'] and command[3] == 'python'
  assert (ROOT / command[4]).is_file() and (ROOT / command[1]).is_file()
  assert f'--config.output={command[2]}' in command and '--coordinator=auto' in command


@pytest.mark.parametrize('kind', ['tpu', 'gpu'])
def test_images_copy_what_is_there_and_install_an_extra_that_exists(kind):
  text = (LAUNCH / 'docker' / f'Dockerfile.{kind}').read_text('utf-8')
  for line in re.findall(r'^COPY (.*)$', text, re.M):
    assert all((ROOT / source).exists() for source in line.split()[:-1])
  assert f"'.[{kind}]'" in text and f"'{kind}': [" in (ROOT / 'setup.py').read_text('utf-8')
  assert 'FROM ${BASE}' in text and '/' not in re.search(r'^ARG BASE=(\S+)', text, re.M)[1]
  assert re.search(r'^ENTRYPOINT \["bash", "launch/resume.sh"\]$', text, re.M)


@pytest.mark.parametrize('path', [*SCRIPTS, LAUNCH / 'gke_jobset.yaml'], ids=lambda path: path.name)
def test_nothing_of_one_machine_is_written_down(path):
  text = path.read_text('utf-8')
  assert not re.search(r'/(home|root|work|Users)/', text)
  assert not re.search(r'\b[\w-]+\.(io|dev|com)/[\w-]+/[\w-]+:', text)  # an image on some registry
