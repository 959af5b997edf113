//! The result of a scenario: a row for each subject, with a figure per column and repeat.

use std::collections::BTreeMap;

pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What was done, in sentences.
    pub(crate) how: String,
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) digits: usize,
}

pub(crate) struct Row {
    pub(crate) subject: &'static str,
    /// One for each repeat.
    pub(crate) cells: Vec<Cell>,
    /// Events that the figures do not show.
    pub(crate) notes: Vec<String>,
}

/// The figures of one repeat, by column, without figures that could not be measured.
pub(crate) type Cell = BTreeMap<&'static str, f64>;

impl Table {
    pub(crate) fn new(name: &'static str, title: &'static str, how: String, columns: &'static [Column]) -> Self {
        Self { name, title, how, columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, subject: &'static str) -> &mut Row {
        let at = self.rows.iter().position(|row| row.subject == subject).unwrap_or_else(|| {
            self.rows.push(Row { subject, cells: Vec::new(), notes: Vec::new() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Returns the median over the repeats.
    pub(crate) fn figure(&self, subject: &str, column: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.subject == subject)?.median(column)
    }
}

impl Row {
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.notes.contains(&what) {
            self.notes.push(what);
        }
    }

    /// Returns the figures of a column, sorted.
    pub(crate) fn figures(&self, column: &str) -> Vec<f64> {
        let mut figures: Vec<f64> = self.cells.iter().filter_map(|cell| cell.get(column).copied()).collect();
        figures.sort_by(f64::total_cmp);
        figures
    }

    pub(crate) fn median(&self, column: &str) -> Option<f64> {
        let figures = self.figures(column);
        let middle = figures.len().checked_sub(1)?;
        Some((figures[middle / 2] + figures[figures.len() / 2]) / 2.0)
    }
}
