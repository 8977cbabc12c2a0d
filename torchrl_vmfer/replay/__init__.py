"""Replay buffers with separate samplers for the actor and the critics."""

from torchrl_vmfer.replay.buffer import ActorCriticReplayBuffer
from torchrl_vmfer.replay.candidates import CandidatePool
from torchrl_vmfer.replay.episodes import NStepReplayBuffer
from torchrl_vmfer.replay.hindsight import HindsightReplayBuffer

__all__ = [
    "ActorCriticReplayBuffer",
    "CandidatePool",
    "HindsightReplayBuffer",
    "NStepReplayBuffer",
]
