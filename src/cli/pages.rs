//! Pages as files: what `report` and `compile` write.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use graphc::report::page::{Page, PageOptions, build_page, write_html};
use graphc_plan::check::VerifiedPlan;

/// The time in which a page's alternatives are begun where nobody says how many there are to be.
pub(super) const WHY_WITHIN: Duration = Duration::from_secs(10);

/// Writes the page of plans with the names of their files.
pub(super) fn write_plans_page(
    path: &Path,
    plans: &[(String, &VerifiedPlan)],
    options: &PageOptions,
) -> Result<()> {
    let named: Vec<_> = plans.iter().map(|(name, plan)| (name.as_str(), *plan)).collect();
    let names = || named.iter().map(|one| one.0).collect::<Vec<_>>().join(" and ");
    let page = build_page(&named, options).with_context(|| format!("no page of {}", names()))?;
    write_page(path, &page)
}

/// Returns the name that a page gives a file.
pub(super) fn page_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Writes a page.
pub(super) fn write_page(path: &Path, page: &Page) -> Result<()> {
    Ok(graphc_runtime::data::write_file(path, write_html(page).as_bytes())?)
}
