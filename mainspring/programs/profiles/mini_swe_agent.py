"""mini-swe-agent: chat completions, one tool."""

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.profile import KEY, MODEL_NAME, MODEL_URL, Ask, Launch
from mainspring.programs.profiles.client import BY_ARGUMENT, PLACE, Client


class MiniSweAgent(Client):
    name = "mini-swe-agent"
    options = ("config",)
    """`config`: what follows -c, in order, beside mini.yaml."""
    need = ContextNeed(900, compacts=False)
    shaping = ("config",)

    def launch(self, ask: Ask) -> Launch:
        command = [self.program("mini"), "-m", f"openai/{MODEL_NAME}", "-y", "--exit-immediately"]
        command += ["-o", f"{PLACE}/trajectory.json", "-c", "mini.yaml"]
        for setting in self.words("config"):
            command += ["-c", setting]
        environment = {
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": f"{PLACE}/mini",
            "OPENAI_API_BASE": f"{MODEL_URL}/v1",
            "OPENAI_API_KEY": KEY,
        }
        return self.start(ask, [*command, "-t"], environment, {}, told_by=BY_ARGUMENT)
