"""Replay buffers from which actor and critics draw in different ways."""

from torchrl_vmfer.replay.actor_critic import ActorCriticReplayBuffer

__all__ = ["ActorCriticReplayBuffer"]
