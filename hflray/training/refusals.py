"""What does not go together inside a round: each refusal is one line that says how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hflray.aggregation import Aggregator, Mean
from hflray.errors import ConfigError
from hflray.support import references
from hflray.training.rules import LocalRule
from hflray.training.rules.own import OwnTraining

if TYPE_CHECKING:
    from hflray.training.method import Method, Parts


def check_secrecy(method: Method, edge: Aggregator, rule: LocalRule) -> None:
    """Raise ConfigError if an edge would look at models that are hidden, or if more than a clipped update is summed."""
    if method.hides and not edge.linear:
        raise ConfigError(
            f"aggregation.edge.name: got {references.spoken(method.edge.name)} with cost.secure_aggregation.shares, "
            "which hides each model from its edge; accepted with it: mean; remove one of them"
        )
    if method.privacy is None:
        return
    beside = f"with privacy.clip = {method.privacy.clip:g}"
    if not method.uniform:
        raise ConfigError(
            f"aggregation.weights: got samples {beside}, and a device would change a sum by more than its clipped "
            "update; accepted with it: uniform; set it"
        )
    if type(edge) is not Mean:
        raise ConfigError(
            f"aggregation.edge.name: got {references.spoken(method.edge.name)} {beside}, whose noise belongs to a sum; "
            "accepted with it: mean; remove it"
        )
    if rule.extra or rule.vectors[0]:
        raise ConfigError(
            f"training.rule.name: got {references.spoken(method.rule.name)} {beside}, and its further vectors would "
            "leave a device without noise; accepted with it: sgd, fedprox, fednova, mtgc, or your own without `extra`; "
            "take one of them"
        )


def check_statistics(method: Method, statistics: int) -> None:
    """Raise ConfigError if statistics of normalisation layers would be sent without noise."""
    if method.privacy is not None and statistics:
        raise ConfigError(
            f"training.buffers: got average with privacy.clip = {method.privacy.clip:g}, and the {statistics:,} "
            "statistics of the network's normalisation layers would be sent without noise; accepted with it: local; "
            "set it"
        )


def check_rule(method: Method, rule: LocalRule, changed: Sequence[str]) -> None:
    """Raise ConfigError if a rule does not go with the rest.

    Args:
        method: what happens inside a round.
        rule: its built rule.
        changed: what belongs to every rule and is not the default: momentum, weight_decay, clip, decay.
    """
    name, plain = references.spoken(method.rule.name), type(method)()
    if isinstance(rule, OwnTraining) and set(changed) - {"decay"}:
        raise ConfigError(
            f"training.{changed[0]}: got {getattr(method, changed[0])} with a function of your own as training.rule, "
            "which makes its own steps; accepted with it: the default; let the function do it"
        )
    if rule.needs_uniform and not method.uniform:
        raise ConfigError(
            f"training.rule.name: {name} gives all devices the same weight; accepted with it: aggregation.weights = "
            "uniform; set it"
        )
    if rule.makes_model and method.cloud != plain.cloud:
        raise ConfigError(
            f"aggregation.cloud.name: got {references.spoken(method.cloud.name)} with the rule {name}, which makes the "
            "global model; accepted with it: mean; remove it"
        )
    if rule.extra and not rule.vectors[0] and method.device_compressor != plain.device_compressor:
        raise ConfigError(
            f"compression.device.name: got {references.spoken(method.device_compressor.name)} with the rule {name}, "
            "for which edges need whole models; accepted with it: none; remove it"
        )
    if type(rule).scales is not LocalRule.scales and method.decay.factor < 1 and method.decay.every != "round":
        raise ConfigError(
            f"training.learning_rate_decay.every: got {method.decay.every} with the rule {name}, which counts steps of "
            "one rate in a round; accepted with it: round; set it, or factor to 1"
        )


def check_revision(method: Method, revision: int, edge_iterations: int) -> None:
    """Raise ConfigError if a checkpoint's run has begun with another revision of its rule (`LocalRule.revision`)."""
    if edge_iterations > 1 and revision != (now := method.parts().rule.revision):
        raise ConfigError(
            f"training.rule.name: the run began with revision {revision} of {references.spoken(method.rule.name)}, and "
            f"this hflray has revision {now}, which computes something else; accepted: {now}; begin the run anew"
        )


def check_clock(method: Method, rule: LocalRule) -> None:
    """Raise ConfigError if a rule or an aggregator needs a cloud that waits for the edges."""
    name = references.spoken(method.rule.name)
    if rule.needs_edges or rule.makes_model or type(rule).scales is not LocalRule.scales:
        raise ConfigError(
            f"training.rule.name: got {name} with an asynchronous clock.cloud, and it needs the models of all edges at "
            "one moment; accepted with it: sgd, fedprox, scaffold, or your own that needs no other edge; take one of "
            "them, or another cloud"
        )
    if method.cloud != type(method)().cloud:
        raise ConfigError(
            f"aggregation.cloud.name: got {references.spoken(method.cloud.name)} with an asynchronous clock.cloud, "
            "which never combines several edges; accepted with it: mean; remove one of them"
        )


def check_edges(method: Method, parts: Parts) -> None:
    """Raise ConfigError if something needs the models of an edge's devices at one moment."""
    beside = "with clock.edge.asynchronous, whose edges take one device's model at a time"
    rule = parts.rule
    if type(parts.edge) is not Mean:
        raise ConfigError(
            f"aggregation.edge.name: got {references.spoken(method.edge.name)} {beside}; accepted with it: mean; "
            "remove one of them"
        )
    if rule.extra or any(rule.vectors) or rule.needs_edges or rule.makes_model or parts.scales:
        raise ConfigError(
            f"training.rule.name: got {references.spoken(method.rule.name)} {beside}; accepted with it: sgd, fedprox, "
            "or your own without vectors; take one of them"
        )
    if method.privacy is not None:
        raise ConfigError(
            f"privacy.clip: got {method.privacy.clip:g} {beside}, and its noise belongs to a sum of several; accepted "
            "with it: null; remove one of them"
        )
    if method.hides:
        raise ConfigError(
            f"cost.secure_aggregation.shares: got a number {beside}; accepted with it: null; remove one of them"
        )


def check_tree(method: Method, parts: Parts, gossips: bool) -> None:
    """Raise ConfigError if something needs each edge's model at a cloud that has those of regions, or is not there."""
    beside, rule = "with tree.gossip" if gossips else "with tree.region", parts.rule
    name = references.spoken(method.rule.name)
    if gossips and (rule.extra or any(rule.vectors) or rule.makes_model or rule.needs_edges or parts.scales):
        raise ConfigError(
            f"training.rule.name: got {name} {beside}, and it needs a cloud; accepted with it: sgd, fedprox, or your "
            "own without vectors; take one of them"
        )
    if rule.needs_edges or parts.scales:
        raise ConfigError(
            f"training.rule.name: got {name} {beside}, for which it is not defined; accepted with it: sgd, fedprox, "
            "scaffold, feddyn, or your own that needs no edge's model; take one of them"
        )
    if gossips and method.edge_compressor != type(method)().edge_compressor:
        raise ConfigError(
            f"compression.edge.name: got {references.spoken(method.edge_compressor.name)} {beside}, whose edges mix "
            "whole models; accepted with it: none; remove it"
        )
