//! Sums the memory of an assignment: the bytes at each position, and the peak of each domain.

use graphc_ir::ids::{NodeId, ValueId};

use super::Problem;
use super::layouts::{PlacementId, SbpId};
use super::lifetimes::Span;
use crate::planner::error::PlannerError;

/// A content of a tensor that takes memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemoryItem {
    /// The tensor.
    pub value: ValueId,
    /// Bytes of one content on the busiest rank.
    pub bytes: u64,
    /// The placement of its ranks.
    pub placement: PlacementId,
    /// The span in which it is kept.
    pub span: Span,
}

/// The most memory that a domain needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peak {
    /// The first position where it needs that much.
    pub position: usize,
    /// Bytes.
    pub bytes: u64,
}

/// Lists everything that takes memory.
pub(crate) fn list_items(problem: &Problem<'_>, assignment: &[usize]) -> Vec<MemoryItem> {
    let mut items = Vec::new();
    let lies = |(node, result): (NodeId, usize)| {
        problem.candidates_of(node)[assignment[node.index()]].results[result]
    };
    for made in problem.made.iter() {
        let sbp = lies((made.producer, made.index));
        let bytes = made.kept_bytes(&problem.layouts, sbp, made.beside.map(lies));
        let (value, placement, span) = (made.value, made.placement, made.span);
        items.push(MemoryItem { value, bytes, placement, span });
    }
    for back in problem.write_backs.iter() {
        let (source, target) = (lies((back.update, back.result)), lies((back.variable, 0)));
        let price = problem.layouts.price((back.from, source), (back.to, target));
        let value = problem.decisions.graph().node(back.variable).results[0];
        let bytes = back.kept_bytes(&problem.layouts, source, price);
        let (placement, span) = (back.placement, back.span);
        items.push(MemoryItem { value, bytes, placement, span });
    }
    for demand in problem.demands.iter() {
        let source = problem.source_layout(demand, assignment[demand.producer.index()]);
        let takes = |reader: &(NodeId, Vec<usize>)| {
            problem.target_layouts(reader, assignment[reader.0.index()])
        };
        let taken = demand.readers.iter().flat_map(takes);
        let mut targets: Vec<SbpId> = taken.collect();
        targets.extend(problem.fetch_target(demand, source));
        targets.sort_unstable();
        targets.dedup();
        for target in targets {
            let price = problem.price_demand(demand, source, target);
            let (value, placement) = (demand.value, demand.placement);
            for (span, bytes) in problem.kept_bytes(demand, source, target, price) {
                items.push(MemoryItem { value, bytes, placement, span });
            }
        }
    }
    items.retain(|item| item.bytes > 0);
    items
}

/// Sums the bytes by domain and position.
pub(crate) fn memory_profiles(problem: &Problem<'_>, items: &[MemoryItem]) -> Vec<Vec<u64>> {
    let length = problem.lifetimes.len();
    let mut changes = vec![vec![0i128; length + 1]; problem.lifetimes.domains.len()];
    for item in items {
        let placement = problem.layouts.placement(item.placement);
        for domain in problem.lifetimes.domains_of(placement) {
            let mut keep = |start: usize, end: usize, bytes: u64| {
                changes[domain][start] += i128::from(bytes);
                changes[domain][end + 1] -= i128::from(bytes);
            };
            keep(item.span.start, item.span.end, item.bytes);
            if let Some((first, last)) = problem.lifetimes.looped {
                keep(first, last, item.bytes * item.span.others as u64);
            }
        }
    }
    let sum = |changes: &Vec<i128>| -> Vec<u64> {
        let sums = changes[..length].iter().scan(0, |bytes, change| {
            *bytes += change;
            Some(*bytes as u64)
        });
        sums.collect()
    };
    changes.iter().map(sum).collect()
}

/// Finds the peak of each domain.
pub(crate) fn find_peaks(problem: &Problem<'_>, items: &[MemoryItem]) -> Vec<Peak> {
    memory_profiles(problem, items).iter().map(|profile| find_peak(profile)).collect()
}

fn find_peak(profile: &[u64]) -> Peak {
    let positions = 0..profile.len();
    let position = positions.max_by_key(|&p| (profile[p], std::cmp::Reverse(p))).unwrap_or(0);
    Peak { position, bytes: profile.get(position).copied().unwrap_or(0) }
}

/// Lists the tensors that take most at a position of a domain, at most five, with their bytes.
pub(crate) fn largest_tensors(
    problem: &Problem<'_>,
    items: &[MemoryItem],
    domain: usize,
    position: usize,
) -> Vec<(String, u64)> {
    let mut by_value = std::collections::BTreeMap::new();
    for item in items {
        let placement = problem.layouts.placement(item.placement);
        let here = problem.lifetimes.domains_of(placement).contains(&domain);
        let alive = (item.span.start..=item.span.end).contains(&position);
        let looped = problem.lifetimes.looped;
        let in_loop = looped.is_some_and(|(first, last)| (first..=last).contains(&position));
        let contents = u64::from(alive) + if in_loop { item.span.others as u64 } else { 0 };
        if here && contents > 0 {
            *by_value.entry(item.value).or_insert(0) += contents * item.bytes;
        }
    }
    let mut largest: Vec<(u64, ValueId)> =
        by_value.into_iter().map(|(value, bytes)| (bytes, value)).collect();
    largest.sort_by_key(|&(bytes, value)| (std::cmp::Reverse(bytes), value));
    let name = |value| problem.decisions.graph().display_name(value);
    largest.into_iter().take(5).map(|(bytes, value)| (name(value), bytes)).collect()
}

/// Returns the domain whose peak exceeds a limit most, with the peak's position and bytes.
pub(crate) fn find_overload(
    problem: &Problem<'_>,
    assignment: &[usize],
    limit: u64,
) -> Option<(usize, usize, u64)> {
    overload_of(&memory_profiles(problem, &list_items(problem, assignment)), limit)
}

/// Returns the domain whose peak exceeds a limit most, with the peak's position and bytes. `profiles` has the bytes by domain and position.
pub(crate) fn overload_of(profiles: &[Vec<u64>], limit: u64) -> Option<(usize, usize, u64)> {
    let over = overloads_of(profiles, limit).into_iter();
    over.max_by_key(|&(domain, _, bytes)| (bytes, std::cmp::Reverse(domain)))
}

/// Returns all domains whose peaks exceed a limit, with the peaks' positions and bytes.
pub(crate) fn find_overloads(
    problem: &Problem<'_>,
    assignment: &[usize],
    limit: u64,
) -> Vec<(usize, usize, u64)> {
    overloads_of(&memory_profiles(problem, &list_items(problem, assignment)), limit)
}

fn overloads_of(profiles: &[Vec<u64>], limit: u64) -> Vec<(usize, usize, u64)> {
    let peaks = profiles.iter().map(|profile| find_peak(profile)).enumerate();
    let over = peaks.filter(|(_, peak)| peak.bytes > limit);
    over.map(|(domain, peak)| (domain, peak.position, peak.bytes)).collect()
}

pub(crate) fn too_large(
    problem: &Problem<'_>,
    assignment: &[usize],
    least: Option<u64>,
) -> PlannerError {
    let items = list_items(problem, assignment);
    let peaks = find_peaks(problem, &items);
    let worst = (0..peaks.len()).max_by_key(|&d| (peaks[d].bytes, std::cmp::Reverse(d)));
    let domain = worst.unwrap_or(0);
    let place = &problem.lifetimes.domains[domain];
    PlannerError::Memory {
        rank: place.ranks[0],
        stage: place.stage,
        needed: peaks[domain].bytes,
        limit: problem.limit,
        least,
        largest: largest_tensors(problem, &items, domain, peaks[domain].position),
    }
}

/// Checks that an assignment fits the memory.
///
/// # Errors
/// Returns an error if it does not.
pub(crate) fn check_memory(
    problem: &Problem<'_>,
    assignment: &[usize],
) -> Result<(), PlannerError> {
    match find_overload(problem, assignment, problem.limit) {
        None => Ok(()),
        Some(_) => Err(too_large(problem, assignment, None)),
    }
}
