//! Under which adapter name the pages of an extra key are announced.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::hash::sglang::EventFormat;

/// The names under which live pages were stored.
///
/// A name may be registered while pages of its extra key are held already. In the `default` format that would change
/// their ids, and removals would name blocks that nobody knows. So an extra key keeps the name, or the lack of one,
/// under which its pages were stored, until none of them is left. In the `dynamo` format ids do not depend on names, and
/// a name counts at once.
#[derive(Debug, Default)]
pub struct Namings {
    live: HashMap<String, Naming>,
}

#[derive(Debug)]
struct Naming {
    name: Option<Arc<str>>,
    /// Pages stored and not removed, each tier for itself.
    pages: u64,
}

impl Namings {
    /// The name for `pages` pages that are stored now. `registered`: the name by today's registrations.
    pub fn store(
        &mut self,
        format: EventFormat,
        extra_key: Option<&str>,
        pages: usize,
        registered: Option<&str>,
    ) -> Option<Arc<str>> {
        let extra_key = extra_key?;
        if format == EventFormat::Dynamo {
            return registered.map(Into::into);
        }
        let naming = self.live.entry_ref(extra_key).or_insert_with(|| Naming {
            name: registered.map(Into::into),
            pages: 0,
        });
        naming.pages += pages as u64;
        naming.name.clone()
    }

    /// The name for `pages` pages that are removed now.
    pub fn remove(&mut self, extra_key: Option<&str>, pages: usize, registered: Option<&str>) -> Option<Arc<str>> {
        let extra_key = extra_key?;
        let Some(naming) = self.live.get_mut(extra_key) else {
            return registered.map(Into::into);
        };
        let name = naming.name.clone();
        naming.pages = naming.pages.saturating_sub(pages as u64);
        if naming.pages == 0 {
            self.live.remove(extra_key);
        }
        name
    }

    /// The name that pages stored now would get.
    pub fn current(&self, extra_key: Option<&str>, registered: Option<&str>) -> Option<Arc<str>> {
        match self.live.get(extra_key?) {
            Some(naming) => naming.name.clone(),
            None => registered.map(Into::into),
        }
    }

    /// Nothing is held any more.
    pub fn clear(&mut self) {
        self.live.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_name_waits_until_the_unnamed_pages_are_gone() {
        let mut namings = Namings::default();
        let key = Some("k");
        let store = |namings: &mut Namings, pages, name| namings.store(EventFormat::Default, key, pages, name);
        assert_eq!(store(&mut namings, 2, None), None);
        assert_eq!(store(&mut namings, 1, Some("late")), None);
        assert_eq!(namings.remove(key, 2, Some("late")), None);
        assert_eq!(namings.current(key, Some("late")), None);
        assert_eq!(namings.remove(key, 1, Some("late")), None);
        assert_eq!(namings.current(key, Some("late")).as_deref(), Some("late"));
        assert_eq!(store(&mut namings, 1, Some("late")).as_deref(), Some("late"));
        assert_eq!(namings.remove(key, 1, None).as_deref(), Some("late"));
        assert!(namings.live.is_empty());
    }

    #[test]
    fn a_late_name_counts_at_once_where_ids_do_not_depend_on_it() {
        let mut namings = Namings::default();
        assert_eq!(namings.store(EventFormat::Dynamo, Some("k"), 1, None), None);
        let name = namings.store(EventFormat::Dynamo, Some("k"), 1, Some("late"));
        assert_eq!(name.as_deref(), Some("late"));
        assert!(namings.live.is_empty());
    }

    #[test]
    fn a_clear_forgets_every_naming() {
        let mut namings = Namings::default();
        namings.store(EventFormat::Default, Some("k"), 1, None);
        namings.clear();
        let name = namings.store(EventFormat::Default, Some("k"), 1, Some("n"));
        assert_eq!(name.as_deref(), Some("n"));
    }
}
