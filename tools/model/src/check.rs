//! Runs the checker over all states, and searches for states that cannot come to rest.
//!
//! There is no limit of states, depth or time, so a run without a counterexample has visited every state.

use super::{config::Config, protocol::rests, state::World};
use stateright::{Checker, HasDiscoveries, Model, Path};
use std::{
    collections::{HashMap, HashSet},
    fmt::{Debug, Write},
    hash::Hash,
    mem,
    time::Instant,
};

/// Checks that every `always` property holds in every state and that every property of `reached` is reached. Returns
/// the number of states.
pub(crate) fn holds<M>(name: &str, model: M, reached: &[&str]) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let began = Instant::now();
    let checker = model.checker().spawn_bfs().join();
    let met = checker.discoveries();
    for property in checker.model().properties() {
        let path = met.get(property.name);
        if property.expectation.discovery_is_failure() {
            assert!(path.is_none(), "{name}: {} fails{}", property.name, path.map(trace).unwrap_or_default());
        } else if reached.contains(&property.name) {
            assert!(path.is_some(), "{name}: {} is out of reach: the model has become too narrow", property.name);
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, {depth} steps deep, {:.1?}", began.elapsed());
    states
}

/// Checks that the property fails, and prints the trace of a counterexample.
pub(crate) fn fails<M>(name: &str, model: M, property: &str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    match found.get(property) {
        Some(path) => println!("{name}: {property} fails{}", trace(path)),
        None => panic!("{name}: {property} holds, and these do not: {:?}", found.keys()),
    }
}

fn trace<S, A>(path: &Path<S, A>) -> String
where
    S: Clone + Debug + Hash + PartialEq,
    A: Clone + Debug + PartialEq,
{
    let actions = path.clone().into_actions();
    actions.iter().fold(format!(" after {} steps:", actions.len()), |mut trace, action| {
        let _ = write!(trace, "\n    {action:?}");
        trace
    })
}

/// Counts the states from which no path leads to rest. Returns that number and the number of all states.
///
/// This checks reachability and assumes no fairness: a state is stuck if no sequence of further actions leads to rest.
/// The checker's `eventually` properties are not used because they ignore loops, and this protocol polls.
pub(crate) fn stuck(config: &Config) -> (usize, usize) {
    let began = Instant::now();
    let mut numbers: HashMap<World, usize> = config.init_states().into_iter().zip(0..).collect();
    let mut ahead: Vec<World> = numbers.keys().cloned().collect();
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); ahead.len()];
    let mut resting = Vec::new();
    let mut actions = Vec::new();
    while let Some(world) = ahead.pop() {
        let number = numbers[&world];
        if rests(&world) {
            resting.push(number);
        }
        config.actions(&world, &mut actions);
        for next in actions.drain(..).filter_map(|action| config.next_state(&world, action)) {
            let fresh = before.len();
            let at = *numbers.entry(next).or_insert_with_key(|next| {
                ahead.push(next.clone());
                before.push(Vec::new());
                fresh
            });
            before[at].push(number);
        }
    }
    let mut rests: HashSet<usize> = resting.iter().copied().collect();
    while let Some(number) = resting.pop() {
        resting.extend(mem::take(&mut before[number]).into_iter().filter(|&earlier| rests.insert(earlier)));
    }
    let (states, stuck) = (before.len(), before.len() - rests.len());
    println!("{}: {stuck} of {states} states are stuck, {:.1?}", config.name, began.elapsed());
    (stuck, states)
}
