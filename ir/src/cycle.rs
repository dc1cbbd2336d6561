//! Finds a cycle of things that wait for each other, as data and as text, if they have no order.

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

/// The most nodes of a cycle that is written in full.
const MOST_SHOWN: usize = 8;

/// Finds a cycle of a graph that is given by its edges: each node leads to the next, and the last to the first. It is empty if there is none. Of
/// several cycles it is always the same one, whatever the order of the edges.
pub fn find_cycle(edges: &[(u32, u32)]) -> Vec<u32> {
    let mut edges = edges.to_vec();
    edges.sort_unstable();
    let graph = DiGraph::<(), ()>::from_edges(&edges);
    let components = tarjan_scc(&graph).into_iter().map(|component| {
        let mut nodes: Vec<u32> = component.iter().map(|node| node.index() as u32).collect();
        nodes.sort_unstable();
        nodes
    });
    let closed =
        components.filter(|nodes| nodes.len() > 1 || edges.contains(&(nodes[0], nodes[0])));
    closed.min().map_or_else(Vec::new, |nodes| walk_component(&edges, &nodes))
}

/// Goes from node to node of a strongly connected component, until one comes again.
fn walk_component(edges: &[(u32, u32)], component: &[u32]) -> Vec<u32> {
    let next = |from: u32| {
        let begin = edges.partition_point(|edge| edge.0 < from);
        let inside = |edge: &&(u32, u32)| component.binary_search(&edge.1).is_ok();
        edges[begin..].iter().take_while(|edge| edge.0 == from).find(inside).map(|edge| edge.1)
    };
    let mut path = vec![component[0]];
    while let Some(node) = path.last().and_then(|&last| next(last)) {
        if let Some(first) = path.iter().position(|&before| before == node) {
            return path.split_off(first);
        }
        path.push(node);
    }
    // Every node of the component leads to another one of it.
    Vec::new()
}

/// Writes the names of a cycle in its order, `a -> b -> a`; of a long one only its beginning and its end.
pub fn format_cycle(names: &[String]) -> String {
    let mut shown: Vec<&str> = names.iter().chain(names.first()).map(String::as_str).collect();
    let more = names.len().saturating_sub(MOST_SHOWN);
    let left_out = format!("({more} more)");
    if more > 0 {
        shown.splice(MOST_SHOWN / 2..MOST_SHOWN / 2 + more, [left_out.as_str()]);
    }
    shown.join(" -> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_beside_what_only_waits_for_it() {
        // 0 leads to the cycle of 2, 3 and 5, which leads to 1 and 4.
        let edges = [(0, 2), (5, 2), (2, 3), (3, 4), (3, 5), (5, 1), (1, 4)];
        assert_eq!(find_cycle(&edges), [2, 3, 5]);
        let turned: Vec<_> = edges.iter().rev().copied().collect();
        assert_eq!(find_cycle(&turned), [2, 3, 5]);
    }

    #[test]
    fn a_walk_that_enters_a_cycle_later_leaves_its_beginning_out() {
        assert_eq!(find_cycle(&[(0, 3), (3, 2), (2, 3), (2, 4), (4, 0)]), [3, 2]);
    }

    #[test]
    fn a_node_may_wait_for_itself_or_nobody_for_another() {
        assert_eq!(find_cycle(&[(0, 1), (1, 1)]), [1]);
        assert_eq!(find_cycle(&[(0, 1), (1, 2), (0, 2)]), [0; 0]);
        assert_eq!(find_cycle(&[]), [0; 0]);
    }

    #[test]
    fn a_long_cycle_is_written_by_its_ends() {
        let names = |count: usize| (0..count).map(|i| i.to_string()).collect::<Vec<_>>();
        assert_eq!(format_cycle(&names(2)), "0 -> 1 -> 0");
        assert_eq!(format_cycle(&names(8)), "0 -> 1 -> 2 -> 3 -> 4 -> 5 -> 6 -> 7 -> 0");
        assert_eq!(
            format_cycle(&names(12)),
            "0 -> 1 -> 2 -> 3 -> (4 more) -> 8 -> 9 -> 10 -> 11 -> 0"
        );
    }
}
