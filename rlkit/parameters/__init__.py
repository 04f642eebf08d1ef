"""The sections of parameters: every key with its default, range, unit and help. Nothing else in
the project holds a default of its own; `docs/parameters.md` is these files as a table."""

from rlkit.parameters.learning import (
    GrpoSection,
    LoraSection,
    ModelSection,
    RolloutSection,
    SftSection,
    TrainingSection,
)
from rlkit.parameters.results import (
    EvaluationSection,
    MergeSection,
    MonitoringSection,
    TuneSection,
)
from rlkit.parameters.task import (
    AnswersSection,
    CheckerSection,
    DataSection,
    ExecutorSection,
    RewardSection,
    SearchSection,
)

__all__ = [
    "AnswersSection",
    "CheckerSection",
    "DataSection",
    "EvaluationSection",
    "ExecutorSection",
    "GrpoSection",
    "LoraSection",
    "MergeSection",
    "ModelSection",
    "MonitoringSection",
    "RewardSection",
    "RolloutSection",
    "SearchSection",
    "SftSection",
    "TrainingSection",
    "TuneSection",
]
