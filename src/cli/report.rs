//! `graphc report`: plans as a page.

use std::path::Path;

use anyhow::Result;
use graphc::profile::Profile;
use graphc::report::page::PageOptions;
use graphc_plan::check::VerifiedPlan;

use super::args::ReportArgs;
use super::data_files::read_text;
use super::output::{check_distinct, check_places};
use super::pages::{WHY_WITHIN, page_name, write_plans_page};
use super::plans::load_sound_plan;

/// Bytes of the longest file of metrics: a million steps have a tenth.
const LONGEST: u64 = 1 << 30;

/// Runs the command.
pub(super) fn run_report(args: &ReportArgs) -> Result<()> {
    let mut inputs: Vec<_> =
        args.plans.iter().map(|path| ("the plan", Some(path.as_path()))).collect();
    inputs.extend([("--metrics", args.metrics.as_deref())]);
    inputs.extend([("--measured", args.measured.as_deref())]);
    let output = [("--output", Some(args.output.as_path()))];
    check_distinct(&inputs, &output)?;
    check_places(&output)?;
    let plans = args.plans.iter().map(|path| Ok((page_name(path), load_sound_plan(path)?)));
    let plans: Vec<(String, VerifiedPlan)> = plans.collect::<Result<_>>()?;
    let options = PageOptions {
        explain: args.explain,
        within: args.explain.is_none().then_some(WHY_WITHIN),
        metrics: read_file_text(args.metrics.as_deref())?,
        measured: args.measured.as_deref().map(Profile::read).transpose()?,
    };
    let named: Vec<_> = plans.iter().map(|(name, plan)| (name.clone(), plan)).collect();
    write_plans_page(&args.output, &named, &options)
}

fn read_file_text(path: Option<&Path>) -> Result<Option<String>> {
    path.map(|path| read_text(path, LONGEST, "")).transpose()
}
