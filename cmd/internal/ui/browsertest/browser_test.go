package browsertest

import _ "github.com/chromedp/chromedp"
import _ "github.com/fencepost/fencepost/cmd/internal/ui/uitest"
