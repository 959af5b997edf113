//! Draws the tables as bars.

use crate::{
    Result,
    scenarios::{herd::HERD, outage, throughput},
    table::Table,
};
use plotters::prelude::*;
use std::path::Path;

/// Draws comparison_herd.svg, comparison_hit.svg and comparison_outage.svg into the directory.
pub(crate) fn draw(docs: &Path, tables: &[Table]) -> Result<()> {
    let panel = |table: &str, column: &'static str, title: &'static str, scale| {
        tables.iter().find(|one| one.name == table).map(|table| Panel::of(table, column, title, scale))
    };
    let herd = [
        panel(HERD, "origin calls", "origin calls", Scale::Logarithmic),
        panel(HERD, "last answer, ms", "last answer, ms (the fetch takes 50)", Scale::Logarithmic),
    ];
    bars(&docs.join("comparison_herd.svg"), "1,000 callers in two processes, one cold key", herd)?;
    let hit = [
        panel(throughput::HIT, "of raw GET", "64 keys, answers per raw GET", Scale::Linear),
        panel(throughput::SAME, "of raw GET", "one key, answers per raw GET", Scale::Linear),
    ];
    bars(&docs.join("comparison_hit.svg"), "Hits of 64 callers, 1 KiB", hit)?;
    let outage = [
        panel(outage::SIGKILL, "worst, ms", "killed for 15 s: worst latency, ms", Scale::Logarithmic),
        panel(outage::SIGKILL, "failed", "requests failed meanwhile", Scale::Logarithmic),
    ];
    bars(&docs.join("comparison_outage.svg"), "Redis is killed under 16 clients", outage)
}

struct Panel {
    title: &'static str,
    scale: Scale,
    /// The figure is `None` if the subject did not finish.
    bars: Vec<(&'static str, Option<f64>, usize)>,
}

#[derive(Clone, Copy)]
enum Scale {
    Linear,
    Logarithmic,
}

impl Scale {
    /// From 0 to 1.
    fn length(self, figure: f64, most: f64) -> f64 {
        match self {
            Self::Linear => figure / most,
            Self::Logarithmic => (1.0 + figure).ln() / (1.0 + most).ln(),
        }
    }
}

impl Panel {
    fn of(table: &Table, column: &str, title: &'static str, scale: Scale) -> Self {
        let digits = table.columns.iter().find(|one| one.name == column).map_or(0, |column| column.digits);
        let bars = table.rows.iter().map(|row| (row.subject, row.median(column), digits));
        Self { title, scale, bars: bars.collect() }
    }
}

fn bars(path: &Path, title: &str, panels: [Option<Panel>; 2]) -> Result<()> {
    let panels: Vec<Panel> = panels.into_iter().flatten().collect();
    let rows = panels.first().map_or(0, |panel| panel.bars.len());
    let height = HEAD + ROW * i32::try_from(rows)? + MARGIN;
    let root = SVGBackend::new(path, (WIDTH.try_into()?, height.try_into()?)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(title, (MARGIN, MARGIN), ("sans-serif", 20)))?;
    for (number, panel) in panels.iter().enumerate() {
        let left = NAMES + i32::try_from(number)? * (BAR + FIGURE);
        root.draw(&Text::new(panel.title, (left, MARGIN + 32), ("sans-serif", 14)))?;
        let most = panel.bars.iter().filter_map(|(_, figure, _)| *figure).fold(f64::MIN_POSITIVE, f64::max);
        for (row, (subject, figure, digits)) in panel.bars.iter().enumerate() {
            let top = HEAD + ROW * i32::try_from(row)?;
            if number == 0 {
                root.draw(&Text::new(*subject, (MARGIN, top + 2), ("sans-serif", 14)))?;
            }
            let (length, figure) = match figure {
                Some(figure) => (panel.scale.length(*figure, most), format!("{figure:.digits$}")),
                None => (0.0, "did not finish, see the table".to_owned()),
            };
            let ours = subject.starts_with("stampede-guard");
            let colour = if ours { RGBColor(0x1f, 0x77, 0xb4) } else { RGBColor(0xa0, 0xa0, 0xa0) };
            let right = left + (length * f64::from(BAR)).round() as i32;
            root.draw(&Rectangle::new([(left, top), (right.max(left + 1), top + ROW - 6)], colour.filled()))?;
            root.draw(&Text::new(figure, (right + 6, top + 2), ("sans-serif", 13)))?;
        }
    }
    root.present()?;
    Ok(())
}

const WIDTH: i32 = NAMES + 2 * (BAR + FIGURE);
const NAMES: i32 = 220;
const BAR: i32 = 240;
const FIGURE: i32 = 150;
const HEAD: i32 = 76;
const ROW: i32 = 24;
const MARGIN: i32 = 16;
