//! Table 11.2 as published, measured on another machine and in Python.

/// A recipe of the book, with its name in this table.
pub(crate) struct Published {
    pub(crate) name: &'static str,
    cells: [(u32, u64, u64); 4],
}

impl Published {
    /// Returns tries and acquires within [`SECONDS`].
    pub(crate) fn with(&self, clients: u32) -> Option<(u64, u64)> {
        self.cells.iter().find(|cell| cell.0 == clients).map(|&(_, tries, acquires)| (tries, acquires))
    }
}

pub(crate) const BOOK: [Published; 2] = [
    Published {
        name: "book: setnx-expire",
        cells: [(1, 31_359, 31_359), (2, 30_085, 22_507), (5, 47_694, 19_695), (10, 71_917, 14_361)],
    },
    Published {
        name: "book: exists-setex",
        cells: [(1, 44_494, 44_494), (2, 50_404, 42_199), (5, 70_807, 40_826), (10, 96_871, 33_990)],
    },
];

pub(crate) const SECONDS: f64 = 10.0;
