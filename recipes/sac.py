"""SAC with vMFER: Algorithm 2 of the paper.

python recipes/sac.py env=HalfCheetah-v4 replay=per_rank sampler=vmf_uncertainty
"""

from __future__ import annotations

from torchrl_vmfer import VMFSACLoss, VMFUncertainty
from vmfer_recipes.training.collection import make_collector
from vmfer_recipes.training.environments import make_environment
from vmfer_recipes.training.launch import recipe
from vmfer_recipes.training.networks import exploring, gaussian_actor, make_critics
from vmfer_recipes.training.options import SACConfig
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


@recipe("sac", SACConfig)
def main(cfg: SACConfig) -> None:
    """Trains one agent, unless that was done before."""
    session = Session(cfg)
    if not session.finished:
        train(cfg, session)


def train(cfg: SACConfig, session: Session) -> None:
    """Trains one agent."""
    backend = session.backend
    env = make_environment(cfg.env.name, cfg.seed, goals=cfg.replay.kind == "her")
    perception = make_perception(env, cfg)
    actor = gaussian_actor(env, cfg.hidden)
    loss = VMFSACLoss(
        actor,
        make_critics(env, cfg.hidden, cfg.num_critics),
        num_qvalue_nets=cfg.num_critics,
        action_spec=env.action_spec,
        alpha_init=cfg.alpha_init,
        target_entropy=cfg.target_entropy,
        entropy_gradient=cfg.entropy_gradient,
        measure=stores_factors(cfg.sampler),
        fast=backend.is_fast and not cfg.compile,
        loss_function="l2",
    ).to(cfg.device)
    loss.make_value_estimator(gamma=cfg.gamma)
    if cfg.compile:
        compiled(loss, "qvalue_v2_loss", "actor_loss")
    uncertainty = VMFUncertainty(loss)
    targets = backend.soft_update(loss, tau=cfg.tau)
    critic_optimizer = backend.adam(loss.qvalue_network_params, cfg.critic_lr)
    actor_optimizer = backend.adam(loss.actor_network_params, cfg.actor_lr)
    alpha_optimizer = backend.adam([loss.log_alpha], cfg.alpha_lr)
    buffer = make_replay_buffer(env, cfg, backend)
    actor_batch = make_actor_batches(buffer, perception, uncertainty, cfg)
    explorer = perception.before(exploring(backend, actor))
    collector = make_collector(env, explorer, perception, buffer, cfg, backend)

    for step in session.steps(
        policy=perception.before(actor),
        perception=perception,
        loss=loss,
        critic_optimizer=critic_optimizer,
        actor_optimizer=actor_optimizer,
        alpha_optimizer=alpha_optimizer,
        replay=CheckpointedReplay(buffer),
        collector=collector,
    ):
        collector.collect()
        if step <= cfg.init_random_frames:
            continue

        for _ in range(cfg.utd_ratio):
            batch = perception(buffer.sample())
            critic_loss, info = loss.qvalue_v2_loss(batch)
            backend.descend(critic_optimizer, critic_loss)
            session.metrics.add(critic_loss=critic_loss)
            if cfg.replay.kind in ("per", "per_rank"):
                prioritize(buffer, batch, info["td_error"])

        batch = actor_batch(batch)
        actor_loss, info = loss.actor_loss(batch)
        backend.descend(actor_optimizer, actor_loss)
        # The temperature is learned on the batch of the actor, as in the paper.
        alpha_loss = loss.alpha_loss(info["log_prob"]).mean()
        backend.descend(alpha_optimizer, alpha_loss)
        session.metrics.add(actor_loss=actor_loss, alpha=loss.log_alpha.exp())
        if stores_factors(cfg.sampler):
            buffer.update_actor_priority(batch["index"], info["vmf_factor"], generation(batch))
        if "factor_mean" not in session.metrics:  # once per row of train.csv
            session.metrics.add(**agreement(info, uncertainty, batch))
        targets.step()


if __name__ == "__main__":
    main()
