//! The forests of all geometries in use; few.

use super::forest::Forest;
use super::geometry::Geometry;

/// Forests by geometry.
#[derive(Debug, Default)]
pub struct Forests(Vec<(Geometry, Forest)>);

impl Forests {
    /// The forest of a geometry.
    pub fn get(&self, geometry: Geometry) -> Option<&Forest> {
        let (_, forest) = self.0.iter().find(|(known, _)| *known == geometry)?;
        Some(forest)
    }

    /// The forest of a geometry.
    pub fn get_mut(&mut self, geometry: Geometry) -> Option<&mut Forest> {
        let (_, forest) = self.0.iter_mut().find(|(known, _)| *known == geometry)?;
        Some(forest)
    }

    /// The forest of a geometry, planted if it is not there.
    pub fn open(&mut self, geometry: Geometry) -> &mut Forest {
        let place = self.0.iter().position(|(known, _)| *known == geometry);
        let place = place.unwrap_or_else(|| {
            self.0.push((geometry, Forest::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    /// Add a forest; false if there is one of that geometry.
    pub fn add(&mut self, geometry: Geometry, forest: Forest) -> bool {
        let is_new = self.get(geometry).is_none();
        if is_new {
            self.0.push((geometry, forest));
        }
        is_new
    }

    /// Take a forest out.
    pub fn remove(&mut self, geometry: Geometry) -> Option<Forest> {
        let place = self.0.iter().position(|(known, _)| *known == geometry)?;
        Some(self.0.swap_remove(place).1)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Geometry, &Forest)> {
        self.0.iter().map(|(geometry, forest)| (*geometry, forest))
    }

    /// All of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Geometry, &mut Forest)> {
        self.0.iter_mut().map(|(geometry, forest)| (*geometry, forest))
    }
}
