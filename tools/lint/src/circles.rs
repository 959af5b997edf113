//! Circles in a graph.

use std::collections::{BTreeMap, BTreeSet};

/// Returns each largest set of nodes that all reach each other, if it has more than one node.
pub(crate) fn circles<'a>(edges: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|&node| (node, reached_from(node, &next))).collect();
    let mut found = BTreeSet::new();
    for (node, nodes) in &reached {
        let circle: BTreeSet<&str> =
            nodes.iter().copied().filter(|other| reached.get(other).is_some_and(|back| back.contains(node))).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn reached_from<'a>(start: &'a str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(node) = open.pop() {
        for &other in next.get(node).into_iter().flatten() {
            if reached.insert(other) {
                open.push(other);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_of_two_and_three_are_found() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("e", "f"), ("g", "a")];
        assert_eq!(circles(edges.into_iter()), [BTreeSet::from(["a", "b", "c"]), BTreeSet::from(["d", "e"])]);
    }

    #[test]
    fn diamonds_and_loops_of_one_are_no_circles() {
        let edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "d")];
        assert_eq!(circles(edges.into_iter()), Vec::<BTreeSet<&str>>::new());
    }
}
