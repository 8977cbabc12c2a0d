"""TD3 with vMFER: Algorithm 1 of the paper.

python recipes/td3.py env=HalfCheetah-v4 sampler=vmf_rank
"""

from __future__ import annotations

from torchrl_vmfer import VMFTD3Loss, VMFUncertainty
from vmfer_recipes.training.collection import make_collector
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.launch import recipe
from vmfer_recipes.training.networks import deterministic_actor, exploring, make_critics
from vmfer_recipes.training.options import TD3Config
from vmfer_recipes.training.perception import make_perception
from vmfer_recipes.training.replay import (
    CheckpointedReplay,
    generation,
    make_actor_batches,
    make_replay_buffer,
    prioritize,
    stores_factors,
)
from vmfer_recipes.training.session import Session
from vmfer_recipes.training.updates import agreement, compiled


@recipe("td3", TD3Config)
def main(cfg: TD3Config) -> None:
    """Trains one agent, unless that was done before."""
    session = Session(cfg)
    if not session.finished:
        train(cfg, session)


def train(cfg: TD3Config, session: Session) -> None:
    """Trains one agent."""
    backend = session.backend
    env = make_environment(cfg.env.name, cfg.seed, goals=cfg.replay.kind == "her")
    perception = make_perception(env, cfg)
    actor = deterministic_actor(env, cfg.hidden)
    loss = VMFTD3Loss(
        actor,
        make_critics(env, cfg.hidden, cfg.num_critics),
        num_qvalue_nets=cfg.num_critics,
        action_spec=env.action_spec,
        policy_noise=cfg.target_noise,
        noise_clip=cfg.target_noise_clip,
        actor_noise=cfg.actor_noise,
        actor_noise_clip=cfg.actor_noise_clip,
        measure=stores_factors(cfg.sampler) or cfg.actor_noise > 0,
        fast=backend.is_fast and not cfg.compile,
        loss_function="l2",
    ).to(cfg.device)
    loss.make_value_estimator(gamma=cfg.gamma)
    if cfg.compile:
        compiled(loss, "value_loss", "actor_loss")
    uncertainty = VMFUncertainty(loss)
    targets = backend.soft_update(loss, tau=cfg.tau)
    critic_optimizer = backend.adam(loss.qvalue_network_params, cfg.critic_lr)
    actor_optimizer = backend.adam(loss.actor_network_params, cfg.actor_lr)
    buffer = make_replay_buffer(env, cfg, backend)
    actor_batch = make_actor_batches(buffer, perception, uncertainty, cfg)
    explorer = perception.before(exploring(backend, actor, cfg.exploration_noise))
    collector = make_collector(env, explorer, perception, buffer, cfg, backend)

    for step in session.steps(
        policy=perception.before(actor),
        perception=perception,
        loss=loss,
        critic_optimizer=critic_optimizer,
        actor_optimizer=actor_optimizer,
        replay=CheckpointedReplay(buffer),
        collector=collector,
    ):
        collector.collect()
        if step <= cfg.init_random_frames:
            continue

        for _ in range(cfg.utd_ratio):
            batch = perception(buffer.sample())
            critic_loss, info = loss.value_loss(batch)
            backend.descend(critic_optimizer, critic_loss)
            session.metrics.add(critic_loss=critic_loss)
            if cfg.replay.kind in ("per", "per_rank"):
                td_error = info["td_error"].detach().amax(0).sqrt()
                prioritize(buffer, batch, td_error)

        if step % cfg.policy_delay == 0:
            batch = actor_batch(batch)
            actor_loss, info = loss.actor_loss(batch)
            backend.descend(actor_optimizer, actor_loss)
            session.metrics.add(actor_loss=actor_loss)
            if stores_factors(cfg.sampler):
                buffer.update_actor_priority(batch["index"], info["vmf_factor"], generation(batch))
            if "factor_mean" not in session.metrics:  # once per row of train.csv
                session.metrics.add(**agreement(info, uncertainty, batch))
            targets.step()


if __name__ == "__main__":
    main()
