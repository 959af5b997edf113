//! Draws the load of Redis against the size of the fleet, without and with the near cache.

use crate::{args::Args, fleet, load::Load, row::Row};
use plotters::prelude::*;
use std::{error::Error, path::Path};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) fn draw(path: &Path, args: &Args) -> Result<()> {
    let kinds = [("without near cache", false, 0.0), ("with near cache", true, 0.0), ("and early refresh", true, 1.0)];
    let mut lines = Vec::new();
    for (name, near, early) in kinds {
        let load = Load { near, early, ..args.load.clone() };
        let simulate = |processes: &u32| fleet::simulate(&load, *processes, args.seconds(*processes));
        lines.push((name, args.processes.iter().map(simulate).collect::<Vec<_>>()));
    }
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(WIDTH / 2);
    panel(&left, "Redis commands per second", &lines, |row| row.commands_per_s)?;
    panel(&right, "Redis load, % of its capacity", &lines, |row| 100.0 * row.redis)?;
    root.present()?;
    Ok(())
}

/// Both axes are logarithmic, so that proportional growth is a straight line.
fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    lines: &[(&str, Vec<Row>)],
    of: impl Fn(&Row) -> f64,
) -> Result<()> {
    let values = || lines.iter().flat_map(|(_, rows)| rows).map(&of).filter(|value| *value > 0.0);
    let sizes = || lines.iter().flat_map(|(_, rows)| rows).map(|row| f64::from(row.processes));
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let (smallest, largest) = (sizes().fold(f64::MAX, f64::min), sizes().fold(f64::MIN, f64::max));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((smallest..largest * 1.1).log_scale(), (least / 1.3..most * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("processes")
        .x_label_formatter(&|size| format!("{size:.0}"))
        .y_label_formatter(&|value| format!("{value}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (number, (name, rows)) in lines.iter().enumerate() {
        let style = Palette99::pick(number).stroke_width(2);
        let points = || rows.iter().map(|row| (f64::from(row.processes), of(row))).filter(|(_, value)| *value > 0.0);
        chart
            .draw_series(LineSeries::new(points(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], style));
        chart.draw_series(points().map(|point| Circle::new(point, 3, style.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

const WIDTH: u32 = 1_120;
const HEIGHT: u32 = 460;
