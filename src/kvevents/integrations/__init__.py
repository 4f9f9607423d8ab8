"""kvevents inside engines: plugins that SGLang and vLLM load by themselves once kvevents is installed beside them.

They only offer a publisher; what it does is said by the environment (`PluginSettings`), since engines pass on no
settings but their own. See docs/engines.md.
"""

from kvevents.integrations.outlet import Outlet, OutletStats
from kvevents.integrations.report import PluginState, plugin_states
from kvevents.integrations.settings import PluginSettings

__all__ = ["Outlet", "OutletStats", "PluginSettings", "PluginState", "plugin_states"]
