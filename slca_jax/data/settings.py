"""What the preparation of a data set can be told, and the combinations that cannot work."""

import dataclasses
from typing import Literal

from slca_jax.config import require

REST = AS_THEY_COME = -1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Portion:
  """How much of the samples one side gets, drawn evenly over the subsets.

  Attributes:
    size: a count from 1 on, a share below 1 of what there is, 0 for nothing, -1 for all that the other sides leave.
    decomposed: share of these that is cut from dialogues of several turns; -1 takes them as they come.
  """

  size: float = 0.0
  decomposed: float = AS_THEY_COME

  def __post_init__(self):
    size, mix = self.size, self.decomposed
    require(
      size == REST or 0 <= size < 1 or (size >= 1 and size == int(size)),
      f'size is {size:g}; a count is a whole number from 1 on, a share is below 1, and -1 takes all that is left',
    )
    require(
      mix == AS_THEY_COME or 0 <= mix <= 1,
      f'decomposed is {mix:g}; it is a share in [0, 1], or -1 for as they come',
    )
    require(
      mix == AS_THEY_COME or size != REST,
      f'size is -1, all that is left; decomposed {mix:g} would choose among it, so it must be -1',
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Filters:
  """What is dropped besides what cannot be read.

  Attributes:
    irrelevant: drop what calls no tool.
    answers: drop demonstrations of which a turn does not end with words to the user.
    arguments: drop calls that lack a required parameter or do not fit the tool's schema.
    duplicates: keep one of the rows that are equal but for their ids.
    longest: drop what has more characters, tools included; 0 has no limit.
  """

  irrelevant: bool = True
  answers: bool = True
  arguments: bool = True
  duplicates: bool = True
  longest: int = 0

  def __post_init__(self):
    require(self.longest >= 0, f'longest is {self.longest}; it counts characters, 0 has no limit')


@dataclasses.dataclass(frozen=True, slots=True)
class Preparation:
  """From a data set to files for SFT and RL. Phases as in SLCA-GRPO (arXiv:2609.29050), C.1.

  Attributes:
    input: a file, a folder or a glob of files, or `hf:owner/name` for a data set of the hub.
    output: folder for the files and the report.
    format: a name of `data/formats`, 'auto' tells it by the rows.
    split: which split of a hub data set.
    limit: read at most so many rows; 0 reads all.
    seed: which dialogues fall on which side.
    heldout: dialogues nothing is trained on; one sample is taken of each.
    sft, rl: sides of what is not held out; a share is one of what that side can use.
    decompose_from: which tool-calling turn of a dialogue of several turns is the first that becomes a sample, from 1; 0
      keeps dialogues whole: all turns are shown to SFT, the first one is RL's task.
    near_duplicates: what happens if a dialogue to train on opens with nearly a held-out question: the run fails, or
      that dialogue is dropped.
    similarity: from which Jaccard index of their pairs of words on two openings are nearly the same.
    chunk: rows that are read between two points at which a killed run resumes.
    examples: dropped rows that the report quotes per reason.
  """

  input: str = ''
  output: str = ''
  format: str = 'auto'
  split: str = 'train'
  limit: int = 0
  seed: int = 0
  heldout: Portion = dataclasses.field(default_factory=lambda: Portion(0.05))
  sft: Portion = dataclasses.field(default_factory=lambda: Portion(0.5))
  rl: Portion = dataclasses.field(default_factory=lambda: Portion(REST))
  filters: Filters = dataclasses.field(default_factory=Filters)
  decompose_from: int = 2
  near_duplicates: Literal['fail', 'drop'] = 'fail'
  similarity: float = 0.8
  chunk: int = 2048
  examples: int = 3

  def __post_init__(self):
    require(self.limit >= 0, f'limit is {self.limit}; it counts rows, 0 reads all')
    require(self.heldout.size != REST, 'heldout.size is -1; give a count or a share, or nothing is left to train on')
    require(
      self.sft.size != REST or self.rl.size != REST, 'sft.size and rl.size are both -1; only one gets all that is left'
    )
    shares = [side.size for side in (self.sft, self.rl) if side.size < 1]
    require(sum(shares) <= 1, f'the shares of sft {self.sft.size:g} and rl {self.rl.size:g} exceed 1')
    require(
      self.decompose_from >= 0,
      f'decompose_from is {self.decompose_from}; 1 is the first turn that calls a tool, 0 keeps dialogues whole',
    )
    require(0 < self.similarity <= 1, f'similarity is {self.similarity}; it lies in (0, 1]')
    require(self.chunk > 0, f'chunk is {self.chunk}; it counts rows and must be positive')
    require(self.examples >= 0, f'examples is {self.examples}; it counts rows')
