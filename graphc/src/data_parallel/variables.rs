//! Variables of data parallelism, in whichever session they lie, and how ranks come to have the same.

use std::collections::BTreeMap;

use graphc_ir::builder::GraphBuilder;
use graphc_ir::ops::{Init, Variable};
use graphc_plan::CompileOptions;
use graphc_runtime::{HostTensor, RuntimeError, Session};

use super::{DataParallel, DataParallelError, DataParallelOptions, open_session};

impl DataParallel {
    /// A parameter, a buffer or a state of the optimizer.
    ///
    /// # Errors
    /// Returns an error if there is none of that name, or the session has failed.
    pub fn variable(&mut self, name: &str) -> Result<HostTensor, DataParallelError> {
        let updater = self.updater.as_mut().filter(|updater| updater.holds(name));
        match (self.aside.get(name), updater) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(updater)) if !self.held.contains(name) => {
                Ok(updater.session.variable(name)?)
            }
            _ => Ok(self.session.variable(name)?),
        }
    }

    /// Overwrites a parameter, a buffer or a state of the optimizer on this rank. Parameters and states are to be set alike on
    /// all ranks.
    ///
    /// # Errors
    /// As [`DataParallel::variable`]; and where the type is another.
    pub fn set_variable(
        &mut self,
        name: &str,
        value: &HostTensor,
    ) -> Result<(), DataParallelError> {
        if let Some(held) = self.aside.get_mut(name) {
            if held.ty() != value.ty() {
                let (name, expected, found) = (name.to_owned(), held.ty(), value.ty());
                return Err(RuntimeError::VariableType { name, expected, found }.into());
            }
            *held = value.clone();
            return Ok(());
        }
        let updater = self.updater.as_mut().filter(|updater| updater.holds(name));
        if self.held.contains(name) || updater.is_none() {
            self.session.set_variable(name, value)?;
        }
        updater.map_or(Ok(()), |updater| updater.session.set_variable(name, value))?;
        Ok(())
    }

    /// Sets the variables of a session of this rank to what those of their names are here, buffers to rank 0's: to evaluate.
    /// All ranks call it.
    ///
    /// # Errors
    /// Returns an error if a session has failed, a variable is of another type there, or a rank has failed.
    pub fn copy_to(&mut self, session: &mut Session) -> Result<(), DataParallelError> {
        self.share(false)?;
        let theirs = session.variables();
        let mine = self.held.iter().map(String::as_str).filter(|name| theirs.contains_key(*name));
        session.copy_variables(&mut self.session, mine)?;
        let elsewhere = theirs.keys().filter(|name| !self.held.contains(*name));
        let known = |name: &&String| {
            self.aside.contains_key(*name) || self.updater.as_ref().is_some_and(|u| u.holds(name))
        };
        for name in elsewhere.filter(known).cloned().collect::<Vec<_>>() {
            session.set_variable(&name, &self.variable(&name)?)?;
        }
        Ok(())
    }

    /// Gives all variables the first content that they have on rank 0.
    pub(super) fn fill(
        &mut self,
        weights: &BTreeMap<String, HostTensor>,
        options: &DataParallelOptions,
    ) -> Result<(), DataParallelError> {
        if let Some(updater) = &mut self.updater {
            updater.take_parameters(&mut self.session)?;
        }
        let all = self.parameters.iter().chain(&self.buffers);
        let unheld = all.filter(|variable| !self.held.contains(&variable.name));
        for variable in unheld.cloned().collect::<Vec<_>>() {
            let content = first_content(&variable, weights, options)?;
            match self.updater.as_mut().filter(|updater| updater.holds(&variable.name)) {
                Some(updater) => updater.session.set_variable(&variable.name, &content)?,
                None => drop(self.aside.insert(variable.name, content)),
            }
        }
        self.share(true)?;
        self.share(false)
    }

    /// Gives all ranks rank 0's parameters or buffers, all in one message.
    pub(super) fn share(&mut self, parameters: bool) -> Result<(), DataParallelError> {
        let which = if parameters { &self.parameters } else { &self.buffers };
        let names: Vec<String> = which.iter().map(|variable| variable.name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let values = names.iter().map(|name| self.variable(name));
        let mut values: Vec<HostTensor> = values.collect::<Result<_, _>>()?;
        let mut all = values.iter().map(HostTensor::bytes).collect::<Vec<_>>().concat();
        self.group.broadcast(&mut all, 0)?;
        if self.group.rank() == 0 {
            return Ok(());
        }
        let mut rest = &all[..];
        for (name, value) in names.iter().zip(&mut values) {
            let (own, behind) = rest.split_at(value.bytes().len());
            value.bytes_mut().copy_from_slice(own);
            self.set_variable(name, value)?;
            rest = behind;
        }
        Ok(())
    }
}

/// Computes the first content of a variable that no plan holds, as a plan would.
fn first_content(
    variable: &Variable,
    weights: &BTreeMap<String, HostTensor>,
    options: &DataParallelOptions,
) -> Result<HostTensor, DataParallelError> {
    let Variable { name, ty, init, trainable } = variable;
    if *init == Init::Weights {
        let missing = || DataParallelError::Weight { name: name.clone(), ty: ty.clone() };
        return weights.get(name).filter(|value| value.ty() == *ty).cloned().ok_or_else(missing);
    }
    let builder = GraphBuilder::new(name);
    let value = builder.variable_of(name, ty.clone(), init.clone(), *trainable);
    builder.output("value", &value);
    let graph = builder.finish().expect("a variable of a graph fits in another");
    let mut session = open_session(graph, &CompileOptions::default(), weights, &options.session)?;
    Ok(session.variable(name)?)
}
