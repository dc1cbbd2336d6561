//! Models that commands read, with what the command line says of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use graphc_compiler::passes::loss::loss_first;
use graphc_compiler::passes::training_mode::keep_eval;
use graphc_import::{ImportError, ImportOptions, Imported, ModelFile, stop_gradients};

use super::args::{LossChoice, SharedArgs};
use super::data_files::{DataExtents, count_samples};

/// Reads a model. What the command line does not say of symbolic extents `data` says.
pub(super) fn read_model(
    path: &Path,
    args: &SharedArgs,
    data: Option<DataExtents<'_>>,
) -> Result<(Imported, BTreeMap<String, usize>)> {
    let mut dims: BTreeMap<String, usize> = args.dims.iter().cloned().collect();
    let model = ModelFile::read(path).map_err(|error| name_file(path, error))?;
    let symbols = model.symbols().map_err(|error| name_file(path, error))?;
    for (name, _) in &args.dims {
        // `batch` stands for the number of samples whatever the model calls it.
        ensure!(
            name == "batch" || symbols.all.contains(name),
            "--dim {name}: {} has no such symbolic dim, it has [{}]",
            path.display(),
            symbols.all.join(", ")
        );
    }
    let given =
        args.dims.iter().find(|(name, _)| name == "batch" || Some(name) == symbols.batch.as_ref());
    if let (Some(batch), Some((name, other))) = (args.batch, given) {
        ensure!(
            batch == *other,
            "--batch {batch} and --dim {name}={other} say different things: give one of them"
        );
    }
    let samples = data.filter(|data| data.are_batch);
    let rows = || samples.and_then(|data| count_samples(data.types, &symbols));
    if let (Some(symbol), Some(batch)) = (&symbols.batch, args.batch.or_else(rows)) {
        dims.entry(symbol.clone()).or_insert(batch);
    }
    if let Some(DataExtents { types, .. }) = data {
        for (symbol, extent) in symbols.extents_in(|name| Some(&types.get(name)?.shape)) {
            dims.entry(symbol).or_insert(extent);
        }
    }
    let mut imported =
        model.import(&dims, import_options(args)).map_err(|error| name_file(path, error))?;
    if let Some(LossChoice::Output(name)) = &args.loss {
        imported.graph = loss_first(imported.graph, name)
            .with_context(|| format!("--loss output:{name} does not fit {}", path.display()))?;
    }
    chosen_gradients(&mut imported, args)
        .map_err(|error| error.context(format!("in {}", path.display())))?;
    Ok((imported, dims))
}

/// Puts what the user says of a model's gradients and of its mode into its graph.
fn chosen_gradients(imported: &mut Imported, args: &SharedArgs) -> Result<()> {
    if !args.stop_gradient.is_empty() {
        imported.graph = stop_gradients(&imported.graph, &args.stop_gradient)?;
    }
    if args.keep_eval {
        imported.graph = keep_eval(&imported.graph)?;
    }
    Ok(())
}

/// An error with the file that it is about, said once.
fn name_file(path: &Path, error: ImportError) -> anyhow::Error {
    let named = error.to_string().contains(&path.display().to_string());
    let error = anyhow::Error::new(error);
    if named { error } else { error.context(format!("in {}", path.display())) }
}

fn import_options(args: &SharedArgs) -> ImportOptions {
    let (freeze, train) = (args.freeze.clone(), args.train.clone());
    ImportOptions { freeze, train, draws_missing: args.draws_missing }
}
