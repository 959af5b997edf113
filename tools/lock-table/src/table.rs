//! Prints the table.

use crate::{
    book::{self, BOOK},
    cell::Cell,
    recipes::Row,
};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// All measurements, in order.
pub(crate) struct Table {
    pub(crate) rows: Vec<(&'static Row, u32, Cell)>,
    lasts: Duration,
}

impl Table {
    pub(crate) fn new(lasts: Duration) -> Self {
        println!(
            "{:18} {:>7} {:>9} {:>9} {:>9} {:>10} {:>9} {:>11} {:>8} {:>8} {:>10}",
            "recipe",
            "clients",
            "tries",
            "acquires",
            "tries/s",
            "acquires/s",
            "of bare's",
            "tries/acq.",
            "most",
            "least",
            "most/least"
        );
        Self { rows: Vec::new(), lasts }
    }

    /// Adds and prints a measurement.
    pub(crate) fn add(&mut self, row: &'static Row, clients: u32, cell: Cell) {
        self.rows.push((row, clients, cell));
        let Cell { tries, acquires, max_share, min_share, violations } = cell;
        let seconds = self.lasts.as_secs_f64();
        let bare = self.rows.iter().find(|(row, with, _)| row.name == "bare" && *with == clients);
        let of_bare = bare.map_or_else(String::new, |(.., bare)| format!("{:.2}", ratio(acquires, bare.acquires)));
        println!(
            "{} {of_bare:>9} {:>11.2} {max_share:>8} {min_share:>8} {:>10.2}",
            figures(row.name, clients, tries, acquires, seconds),
            ratio(tries, acquires),
            ratio(max_share, min_share),
        );
        if violations > 0 {
            println!("VIOLATION: {violations} times a client acquired {} while another held it", row.name);
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|(.., cell)| cell.violations == 0)
    }

    pub(crate) fn json(&self) -> Value {
        let mut recipes = Map::new();
        for (row, clients, cell) in &self.rows {
            let Cell { tries, acquires, max_share, min_share, .. } = cell;
            let cell = json!({"tries": tries, "acquires": acquires, "max_share": max_share, "min_share": min_share});
            recipes.entry(row.name).or_insert_with(|| json!({}))[clients.to_string()] = cell;
        }
        Value::Object(recipes)
    }

    /// Returns, for each recipe, the acquires per second for each number of clients.
    pub(crate) fn lines(&self) -> Vec<(&'static str, Vec<(u32, f64)>)> {
        let mut lines: Vec<(&str, Vec<(u32, f64)>)> = Vec::new();
        for (row, clients, cell) in &self.rows {
            let point = (*clients, cell.acquires as f64 / self.lasts.as_secs_f64());
            match lines.iter_mut().find(|(name, _)| *name == row.name) {
                Some((_, points)) => points.push(point),
                None => lines.push((row.name, vec![point])),
            }
        }
        lines
    }
}

/// Prints the figures of the book for this number of clients.
pub(crate) fn print_book(clients: u32) {
    for published in &BOOK {
        if let Some((tries, acquires)) = published.with(clients) {
            let figures = figures(published.name, clients, tries, acquires, book::SECONDS);
            println!("{figures} {:>9} {:>11.2}", "", ratio(tries, acquires));
        }
    }
}

fn figures(name: &str, clients: u32, tries: u64, acquires: u64, seconds: f64) -> String {
    let (tries_each, acquires_each) = (tries as f64 / seconds, acquires as f64 / seconds);
    format!("{name:18} {clients:>7} {tries:>9} {acquires:>9} {tries_each:>9.0} {acquires_each:>10.0}")
}

fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to as f64
}
