//! Draws acquires against clients, a line for each recipe.

use crate::Result;
use plotters::prelude::*;
use std::path::Path;

pub(crate) fn draw(path: &Path, lines: &[(&'static str, Vec<(u32, f64)>)]) -> Result<()> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most = points().map(|(_, acquires)| *acquires).fold(1.0, f64::max);
    let clients = points().map(|(clients, _)| *clients).max().unwrap_or(1);
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (plot, legend) = root.split_horizontally(WIDTH - LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .caption("One lock, acquired and released", ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(0..clients + 1, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("clients")
        .y_desc("acquisitions per second")
        .x_labels(12)
        .y_label_formatter(&|acquires| format!("{acquires:.0}"))
        .label_style(("sans-serif", 14))
        .draw()?;
    let mut ranked: Vec<_> = lines.iter().enumerate().collect();
    let last = |points: &[(u32, f64)]| points.last().map_or(0.0, |(_, acquires)| *acquires);
    ranked.sort_by(|(_, (_, one)), (_, (_, other))| last(other).total_cmp(&last(one)));
    for (rank, (number, (name, points))) in ranked.into_iter().enumerate() {
        let style = Palette99::pick(number).stroke_width(2);
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, style.filled())))?;
        // In the order of the ends of the lines, so that each line is easy to find.
        let y = 48 + 24 * i32::try_from(rank)?;
        legend.draw(&PathElement::new(vec![(0, y), (24, y)], style))?;
        legend.draw(&Text::new(format!("{name}  {:.0}", last(points)), (32, y - 8), ("sans-serif", 15)))?;
    }
    root.present()?;
    Ok(())
}

const WIDTH: u32 = 960;
const HEIGHT: u32 = 540;
const LEGEND: u32 = 230;
